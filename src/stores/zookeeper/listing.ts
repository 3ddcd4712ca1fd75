import { LOCK_LIMIT, type NameInfo } from "../../core/store.js";
import { shownWaiters, toNameInfo } from "../shared/sessions/operations.js";
import { type DescribedClaim, toDescribed, toHolderInfo, toWaiterInfo } from "./claim-reads.js";
import { ZooKeeperError } from "./client/errors.js";
import type { Layout } from "./layout.js";
import type { Link } from "./link.js";
import { Queue, type StoredClaim } from "./queue.js";
import { childrenOf, dataOf, type ReadResult } from "./turn-requests.js";

/** A name in use, and its claims that are shown. */
interface ListedName {
  readonly name: string;
  readonly queue: Queue;
  readonly holders: readonly StoredClaim[];
  readonly waiters: readonly StoredClaim[];
}

/** Reads names for people, by two requests for all. Names that nobody uses, or that others have written to, are left out. */
export async function listNames(link: Link, names: readonly string[]): Promise<NameInfo[]> {
  const { layout, requests } = link;
  const nodes = await requests.readAll(
    names.map((name) => ({ op: "getChildren", path: layout.name(name) })),
  );
  const read = await Promise.all(names.map((name, i) => listedName(link, name, nodes[i]!)));
  const listed = read.filter((one) => one !== null);
  const data = await requests.readAll(
    listed.flatMap(({ name, holders, waiters }) => {
      const container = layout.name(name);
      return [...holders, ...waiters].map(
        ({ node }) => ({ op: "getData", path: `${container}/${node}` }) as const,
      );
    }),
  );
  let at = 0;
  const infos = listed.map((one) => {
    const from = at;
    at += one.holders.length + one.waiters.length;
    return toInfo(layout, one, data.slice(from, at));
  });
  return infos.filter((info) => info !== null);
}

/** Null: nobody uses the name, or something in it is not Holdfast's. */
async function listedName(link: Link, name: string, nodes: ReadResult): Promise<ListedName | null> {
  try {
    let queue = new Queue(name, childrenOf(nodes));
    if (queue.size === 0) return null;
    // Only semaphores are resized.
    if (queue.limit !== LOCK_LIMIT) {
      const { children, resize } = await link.requests.readName(name);
      queue = new Queue(name, children, resize);
    }
    return { name, queue, holders: queue.holders(), waiters: shownWaiters(queue) };
  } catch (error) {
    return nullUnlessRefused(error);
  }
}

/** `data`: of the holders, and then of the waiters. */
function toInfo(layout: Layout, listed: ListedName, data: readonly ReadResult[]): NameInfo | null {
  const { name, queue, holders, waiters } = listed;
  try {
    const claims = [...holders, ...waiters].map(({ node }, i) =>
      toDescribed(dataOf(data[i]!), `${layout.name(name)}/${node}`),
    );
    const shown = <Info>(
      from: number,
      claim: StoredClaim,
      show: (claim: StoredClaim, data: DescribedClaim) => Info,
    ): Info | null => {
      const described = claims[from];
      return described == null ? null : show(claim, described);
    };
    return toNameInfo(name, queue, {
      holders: holders.map((claim, i) => shown(i, claim, toHolderInfo)),
      waiters: waiters.map((claim, i) => shown(holders.length + i, claim, toWaiterInfo)),
      revoked: [],
    });
  } catch (error) {
    return nullUnlessRefused(error);
  }
}

/** A name with something that is not Holdfast's must not hide the others. */
function nullUnlessRefused(error: unknown): null {
  if (error instanceof ZooKeeperError) throw error;
  return null;
}
