import { randomUUID } from "node:crypto";
import { StoreUnavailableError } from "../../core/errors.js";
import {
  type HolderInfo,
  LOCK_LIMIT,
  modeOf,
  type NameInfo,
  REVOKED_KEPT,
  WAITERS_SHOWN,
} from "../../core/store.js";
import { slices } from "../shared/slices.js";
import { compareUtf8 } from "../shared/utf8.js";
import { type DescribedClaim, describeClaim } from "./claim-reads.js";
import type { ZooKeeperClient } from "./client/client.js";
import { ZooKeeperError } from "./client/errors.js";
import type { MultiPart } from "./client/multi.js";
import { ATTEMPTS, isCode, isUnanswered, tooMuchContentionError } from "./errors.js";
import { comparePlaces, decodeName, type Layout, readBarrier } from "./layout.js";
import type { Link, Links } from "./link.js";
import { Queue, type Resize, type StoredClaim } from "./queue.js";
import { type Revocation, readRevocations } from "./revocations.js";

const NAMES_PER_STEP = 1_000;
const HOLDERS_PER_STEP = 50;
/** A request may have a megabyte by default. */
const MOST_BYTES = 900_000;
/** Of a part beside its path. */
const PART_BYTES = 20;

/** What a step that others may overtake gives. */
const OVERTAKEN: readonly ZooKeeperError["code"][] = ["NO_NODE", "NODE_EXISTS", "BAD_VERSION"];

/** The requests of people about a name: revoke, resize, inspect, list. They need no claim of this process. */
export class Operations {
  readonly #links: Links;
  readonly #layout: Layout;

  constructor(links: Links, layout: Layout) {
    this.#links = links;
    this.#layout = layout;
  }

  /** Takes the name from its present holders, not from claims that are granted it meanwhile. */
  async revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    const link = await this.#links.any();
    const infos: HolderInfo[] = [];
    const step = randomUUID();
    let present: ReadonlySet<string> | null = null;
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const { queue } = await this.#read(link, name);
      const all = queue.holders();
      present ??= new Set(all.map(({ grantId }) => grantId));
      const some = all.filter(({ grantId }) => present!.has(grantId)).slice(0, HOLDERS_PER_STEP);
      const described = await this.#describe(link, name, some);
      const holders = described.flatMap(([claim, data]) =>
        data === null ? [] : [{ claim, data }],
      );
      if (some.length === 0) return infos;
      if (holders.length < some.length) continue;
      if (
        !(await this.#revoke(link, name, holders, {
          ...by,
          step: `${step}-${infos.length}`,
        }))
      ) {
        continue;
      }
      infos.push(...holders.map(({ claim, data }) => toHolderInfo(claim, data)));
      attempt = 0;
    }
    throw tooMuchContentionError(name);
  }

  /**
   * A barrier keeps later claims from being granted, and the step fails if an earlier one has left: so the
   * holders are known exactly when the limit changes.
   */
  async resize(name: string, limit: number): Promise<number | null> {
    const link = await this.#links.any();
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const { queue } = await this.#read(link, name);
      const before = queue.limit;
      if (before === null || before === LOCK_LIMIT || before === limit) return before;
      const changed = await this.#resize(link, name, limit);
      if (changed !== null) return changed;
    }
    throw tooMuchContentionError(name);
  }

  async inspect(name: string): Promise<NameInfo | null> {
    const link = await this.#links.any();
    const [{ queue }, { revocations }] = await Promise.all([
      this.#read(link, name),
      readRevocations(link, name),
    ]);
    return this.#info(link, name, queue, revocations);
  }

  async list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    const link = await this.#links.any();
    const [, { children }] = await Promise.all([
      link.client.sync(this.#layout.names),
      link.client.getChildren(this.#layout.names),
    ]);
    const names = children
      .map(decodeName)
      .filter((name) => name?.startsWith(prefix) === true)
      .sort((one, two) => compareUtf8(one!, two!)) as string[];
    const infos: NameInfo[] = [];
    for (const some of slices(names, NAMES_PER_STEP)) {
      const read = await Promise.all(some.map((name) => this.#listed(link, name)));
      infos.push(...read.filter((info) => info !== null));
      if (infos.length >= limit) break;
    }
    return infos.slice(0, limit);
  }

  /** Null: nobody uses the name, or something in it is not Holdfast's. The other names are still listed. */
  async #listed(link: Link, name: string): Promise<NameInfo | null> {
    try {
      const { children, resize } = await link.requests.readName(name);
      return await this.#info(link, name, new Queue(children, resize), []);
    } catch (error) {
      if (error instanceof ZooKeeperError) throw error;
      return null;
    }
  }

  /** The name after everything that was done before this call. */
  async #read(link: Link, name: string): Promise<{ queue: Queue; version: number }> {
    const { children, resize, version } = await link.readLatest(name);
    return { queue: new Queue(children, resize), version };
  }

  #describe(
    link: Link,
    name: string,
    claims: readonly StoredClaim[],
  ): Promise<(readonly [StoredClaim, DescribedClaim | null])[]> {
    return Promise.all(
      claims.map(async (claim) => [claim, await describeClaim(link, name, claim.node)] as const),
    );
  }

  /** Deletes the claims, records that, and tells their sessions, in one step. False: others have changed something. */
  async #revoke(
    link: Link,
    name: string,
    holders: readonly { claim: StoredClaim; data: DescribedClaim }[],
    { holder: by, why, step }: { holder: string; why: string; step: string },
  ): Promise<boolean> {
    const layout = this.#layout;
    const { revocations, version } = await readRevocations(link, name);
    // An attempt whose reply was lost has done it.
    if (revocations.some((one) => one.step === step)) return true;
    const atMs = Date.now();
    const records = holders.map(({ claim: { grantId }, data: { holder, token } }): Revocation => {
      return { grantId, holder, token: String(token), by, why, atMs, step };
    });
    const path = layout.revocations(name);
    const data = JSON.stringify([...revocations, ...records].slice(-REVOKED_KEPT.many));
    const owners = new Set(holders.map((one) => one.data.owner));
    return this.#try(link.client, [
      ...holders.map(({ claim }) => this.#deletion(name, claim)),
      version === -1 ? { op: "create", path, data } : { op: "setData", path, data, version },
      ...[...owners].map(
        (id): MultiPart => ({ op: "setData", path: layout.session(id), data: "" }),
      ),
    ]);
  }

  /** The limit before; null: others have changed something. */
  async #resize(link: Link, name: string, limit: number): Promise<number | null> {
    const { client } = link;
    const layout = this.#layout;
    const container = layout.name(name);
    const barrier = await client.create(layout.barrier(name), { mode: "ephemeral-sequential" });
    try {
      const { queue, version } = await this.#read(link, name);
      const before = queue.limit;
      if (before === null) return null;
      const place = readBarrier(barrier.path.slice(container.length + 1))!;
      const holders = queue.holders();
      const waiters = queue.waiters().filter((one) => comparePlaces(one.place, place) < 0);
      const dropped = waiters.filter(({ permits }) => permits > limit);
      const staying = [...holders, ...waiters.filter(({ permits }) => permits <= limit)];
      const resize: Resize = { limit, before: place, held: holders.map(({ grantId }) => grantId) };
      const parts: MultiPart[] = [
        { op: "setData", path: container, data: JSON.stringify(resize), version },
        // If one of them had gone, another could hold the name by now.
        ...staying.map(({ node }): MultiPart => ({ op: "check", path: `${container}/${node}` })),
        ...dropped.map((claim) => this.#deletion(name, claim)),
        { op: "delete", path: barrier.path },
      ];
      const bytes = parts.reduce((sum, { path }) => sum + path.length + PART_BYTES, 0);
      if (bytes > MOST_BYTES) {
        throw new StoreUnavailableError(
          `${queue.size} claims stand in ${JSON.stringify(name)}, too many for one step of ZooKeeper: ` +
            "resize it when it is less used",
          { retryable: false },
        );
      }
      return (await this.#try(client, parts)) ? before : null;
    } finally {
      await client.delete(barrier.path).catch(() => {});
    }
  }

  /** False: others have changed something, or the reply was lost. */
  async #try(client: ZooKeeperClient, parts: readonly MultiPart[]): Promise<boolean> {
    try {
      await client.multi(parts);
      return true;
    } catch (error) {
      if (isCode(error, ...OVERTAKEN) || isUnanswered(error)) return false;
      throw error;
    }
  }

  #deletion(name: string, { node }: StoredClaim): MultiPart {
    return { op: "delete", path: `${this.#layout.name(name)}/${node}` };
  }

  async #info(
    link: Link,
    name: string,
    queue: Queue,
    revocations: readonly Revocation[],
  ): Promise<NameInfo | null> {
    if (queue.size + revocations.length === 0) return null;
    const waiting = queue.waiters();
    const [holders, waiters] = await Promise.all([
      this.#describe(link, name, queue.holders()),
      this.#describe(link, name, waiting.slice(0, WAITERS_SHOWN)),
    ]);
    return {
      name,
      limit: queue.limit ?? LOCK_LIMIT,
      holders: holders.flatMap(([claim, data]) => (data ? [toHolderInfo(claim, data)] : [])),
      waiting: waiting.length,
      waiters: waiters.flatMap(([claim, data]) => {
        if (data === null) return [];
        const { holder, ttlMs: expiresInMs } = data;
        const { permits } = claim;
        return [{ holder, mode: modeOf(claim), permits, waitingMs: sinceMs(data), expiresInMs }];
      }),
      revoked: revocations.map(({ holder, token, by, why, atMs }) => {
        return { holder, token: BigInt(token), by, why, agoMs: sinceMs({ atMs }) };
      }),
    };
  }
}

/** By the claimant's clock, which may be ahead of ours. */
const sinceMs = ({ atMs }: { readonly atMs: number }): number => Math.max(0, Date.now() - atMs);

/** ZooKeeper does not tell how long a session has left: at most a ttl, as far as its holder relies on it. */
function toHolderInfo(claim: StoredClaim, data: DescribedClaim): HolderInfo {
  const { holder, token, ttlMs } = data;
  const heldMs = sinceMs(data);
  const { permits } = claim;
  const mode = modeOf(claim);
  return { holder, mode, token, permits, heldMs, expiresInMs: ttlMs, closed: false };
}
