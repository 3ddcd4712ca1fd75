import { StoreUnavailableError } from "../../core/errors.js";
import { type HolderInfo, type NameInfo, REVOKED_KEPT } from "../../core/store.js";
import { infoOf, type RevocationStep, SessionOperations } from "../shared/sessions/operations.js";
import { slices } from "../shared/slices.js";
import { compareUtf8 } from "../shared/utf8.js";
import { describeClaim, sinceMs, toHolderInfo, toWaiterInfo } from "./claim-reads.js";
import type { ZooKeeperClient } from "./client/client.js";
import type { MultiPart } from "./client/multi.js";
import { isCode, isInterruption } from "./errors.js";
import { comparePlaces, decodeName, type Layout, readBarrier } from "./layout.js";
import type { Link, Links } from "./link.js";
import { listNames } from "./listing.js";
import { Queue, type Resize, type StoredClaim } from "./queue.js";
import { type Revocation, readRevocations } from "./revocations.js";
import { prepareRoot } from "./root.js";
import { childrenOf } from "./turn-requests.js";

/** Names whose nodes are listed by one request, and the most that are listed at a time. */
const NAMES_PER_REQUEST = 250;
const MOST_NAMES_AT_ONCE = 2_000;
const HOLDERS_PER_STEP = 50;
/** A request may have a megabyte by default. */
const MOST_BYTES = 900_000;
/** The bytes of a part of a request, without its path. */
const PART_BYTES = 20;

interface NameRead {
  readonly queue: Queue;
  /** The version of the container's data. */
  readonly version: number;
}

/** The requests of people about a name: revoke, resize, inspect, list. They need no claim of this process. */
export class Operations extends SessionOperations<StoredClaim, NameRead> {
  readonly #links: Links;
  readonly #layout: Layout;

  constructor(links: Links, layout: Layout) {
    super(HOLDERS_PER_STEP);
    this.#links = links;
    this.#layout = layout;
  }

  inspect(name: string): Promise<NameInfo | null> {
    return this.#links.withAny(async (link) => {
      const [{ queue }, { revocations }] = await Promise.all([
        readLatest(link, name),
        readRevocations(link, name),
      ]);
      return this.#info(link, name, queue, revocations);
    });
  }

  list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    return this.#links.withAny((link) => this.#list(link, prefix, limit));
  }

  protected read(name: string): Promise<NameRead> {
    return this.#links.withAny((link) => readLatest(link, name));
  }

  async #list(link: Link, prefix: string, limit: number): Promise<readonly NameInfo[]> {
    const [, [all]] = await Promise.all([
      link.client.sync(this.#layout.names),
      link.requests.readAll([{ op: "getChildren", path: this.#layout.names }]),
    ]);
    const names = childrenOf(all!)
      .map(decodeName)
      .filter((name) => name?.startsWith(prefix) === true)
      .sort((one, two) => compareUtf8(one!, two!)) as string[];
    const infos: NameInfo[] = [];
    for (let from = 0, to = 0; from < names.length && infos.length < limit; from = to) {
      const wanted = Math.max(NAMES_PER_REQUEST, limit - infos.length);
      to = from + Math.min(wanted, MOST_NAMES_AT_ONCE);
      const some = slices(names.slice(from, to), NAMES_PER_REQUEST);
      const lists = await Promise.all([...some].map((one) => listNames(link, one)));
      infos.push(...lists.flat());
    }
    return infos.slice(0, limit);
  }

  /** Deletes the claims, records that, and tells their sessions, in one step. */
  protected async revokeInOneStep(
    name: string,
    claims: readonly StoredClaim[],
    _: NameRead,
    { holder: by, why, id: step }: RevocationStep,
  ): Promise<readonly HolderInfo[] | null> {
    const [described, { revocations, version }] = await this.#links.withAny((link) =>
      Promise.all([
        Promise.all(claims.map(({ node }) => describeClaim(link, name, node))),
        readRevocations(link, name),
      ]),
    );
    const holders = described.filter((one) => one !== null);
    if (holders.length < claims.length) return null;
    const infos = claims.map((claim, i) => toHolderInfo(claim, holders[i]!));
    const atMs = Date.now();
    const records = holders.map(({ holder, token }, i): Revocation => {
      return { grantId: claims[i]!.grantId, holder, token: String(token), by, why, atMs, step };
    });
    const path = this.#layout.revocations(name);
    const data = JSON.stringify([...revocations, ...records].slice(-REVOKED_KEPT.many));
    const owners = [...new Set(holders.map(({ owner }) => owner))];
    const isDone = await this.#links.withAny(async ({ client }) => {
      // The parent of the records may have been deleted.
      if (version === -1) await prepareRoot(client, this.#layout);
      return this.#try(client, [
        ...claims.map((claim) => this.#deletion(name, claim)),
        version === -1 ? { op: "create", path, data } : { op: "setData", path, data, version },
        ...owners.map(
          (id): MultiPart => ({ op: "setData", path: this.#layout.session(id), data: "" }),
        ),
      ]);
    });
    return isDone || (await this.#isRecorded(name, step)) ? infos : null;
  }

  /** Whether the step was executed: its reply may have been lost, and then the claims are gone when they are read again. */
  async #isRecorded(name: string, step: string): Promise<boolean> {
    const [, { revocations }] = await this.#links.withAny((link) =>
      Promise.all([link.client.sync(this.#layout.revoked), readRevocations(link, name)]),
    );
    return revocations.some((one) => one.step === step);
  }

  /**
   * A barrier keeps later claims from being granted, and the step fails if an earlier one has left: so the
   * holders are known exactly when the limit changes.
   */
  protected async resizeInOneStep(name: string, _: NameRead, limit: number): Promise<boolean> {
    // The barrier ends with this session, whatever becomes of the requests.
    const link = await this.#links.open();
    try {
      const { client } = link;
      const path = this.#layout.barrier(name);
      const barrier = await client.create(path, { mode: "ephemeral-sequential" });
      const read = await readLatest(link, name);
      return await this.#try(client, this.#resizeParts(name, read, limit, barrier.path));
    } catch (error) {
      if (isOvertaken(error)) return false;
      throw error;
    } finally {
      await this.#links.end(link);
    }
  }

  /** Holders stay; tickets for more than the new limit are dropped. */
  #resizeParts(
    name: string,
    { queue, version }: NameRead,
    limit: number,
    barrier: string,
  ): MultiPart[] {
    const container = this.#layout.name(name);
    const before = readBarrier(barrier.slice(container.length + 1))!;
    const holders = queue.holders();
    const waiters = queue.waiters().filter(({ place }) => comparePlaces(place, before) < 0);
    const dropped = waiters.filter(({ permits }) => permits > limit);
    const staying = [...holders, ...waiters.filter(({ permits }) => permits <= limit)];
    const checked = [...staying.map(({ node }) => node), ...queue.barriersBefore(before)];
    const resize: Resize = { limit, before, held: holders.map(({ grantId }) => grantId) };
    const parts: MultiPart[] = [
      { op: "setData", path: container, data: JSON.stringify(resize), version },
      // The claims are checked, too: if one had gone, another claim could hold the name by now, also one behind the
      // barrier of another resize.
      ...checked.map((node): MultiPart => ({ op: "check", path: `${container}/${node}` })),
      ...dropped.map((claim) => this.#deletion(name, claim)),
      { op: "delete", path: barrier },
    ];
    const bytes = parts.reduce((sum, { path }) => sum + path.length + PART_BYTES, 0);
    if (bytes <= MOST_BYTES) return parts;
    throw new StoreUnavailableError(
      `${queue.size} claims stand in ${JSON.stringify(name)}, too many for one step of ZooKeeper: ` +
        "resize it when it is less used",
      { retryable: false },
    );
  }

  /** False: others have changed something, or the reply was lost. */
  async #try(client: ZooKeeperClient, parts: readonly MultiPart[]): Promise<boolean> {
    try {
      await client.multi(parts);
      return true;
    } catch (error) {
      if (isOvertaken(error) || isInterruption(error)) return false;
      throw error;
    }
  }

  #deletion(name: string, { node }: StoredClaim): MultiPart {
    return { op: "delete", path: `${this.#layout.name(name)}/${node}` };
  }

  #info(
    link: Link,
    name: string,
    queue: Queue,
    revocations: readonly Revocation[],
  ): Promise<NameInfo | null> {
    return infoOf(name, queue, revocations, {
      holder: async (claim) => {
        const data = await describeClaim(link, name, claim.node);
        return data === null ? null : toHolderInfo(claim, data);
      },
      waiter: async (claim) => {
        const data = await describeClaim(link, name, claim.node);
        return data === null ? null : toWaiterInfo(claim, data);
      },
      revoked: ({ holder, token, by, why, atMs }) => {
        return { holder, token: BigInt(token), by, why, agoMs: sinceMs({ atMs }) };
      },
    });
  }
}

async function readLatest(link: Link, name: string): Promise<NameRead> {
  const { children, resize, version } = await link.requests.readLatest(name);
  return { queue: new Queue(name, children, resize), version };
}

const isOvertaken = (error: unknown): boolean =>
  isCode(error, "NO_NODE", "NODE_EXISTS", "BAD_VERSION");
