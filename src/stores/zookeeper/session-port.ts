import type { SessionClaim } from "../shared/sessions/claims.js";
import type {
  BegunSession,
  Session,
  SessionKey,
  SessionPort,
  SessionProof,
} from "../shared/sessions/session.js";
import { isCode } from "./errors.js";
import { type Layout, readClaim } from "./layout.js";
import { type Link, type Links, TIMEOUT_PER_TTL } from "./link.js";
import type { Nodes } from "./nodes.js";
import { sweepRevocations } from "./revocations.js";

export type ZooKeeperSession = Session<Link, SessionProof>;
export type ZooKeeperClaim = SessionClaim<ZooKeeperSession>;

interface SessionListeners {
  revoked(link: Link): Promise<void>;
  reconnected(link: Link): void;
  ended(link: Link): void;
}

/** Revocations that may come one after another while a proof is made. */
const PROOF_ATTEMPTS = 5;

/** Sessions as those of ZooKeeper, each with a client of its own: a client ends with its session. */
export class ZooKeeperSessionPort implements SessionPort<Link, SessionProof> {
  readonly #links: Links;
  readonly #layout: Layout;
  readonly #nodes: Nodes;
  readonly #revoked: (link: Link) => Promise<void>;
  readonly #reconnected: (link: Link) => void;
  readonly #ended: (link: Link) => void;

  /**
   * `revoked`: grants of the session were revoked; drops those claims of it that are gone. `reconnected`: the
   * session has another connection. `ended`: the session is over, or lives shorter than its grants count on.
   */
  constructor(
    links: Links,
    layout: Layout,
    nodes: Nodes,
    { revoked, reconnected, ended }: SessionListeners,
  ) {
    this.#links = links;
    this.#layout = layout;
    this.#nodes = nodes;
    this.#revoked = revoked;
    this.#reconnected = reconnected;
    this.#ended = ended;
  }

  /** A server with a short `maxSessionTimeout` gives a shorter ttl. */
  async begin(ttlMs: number): Promise<BegunSession<Link>> {
    const link = await this.#links.begin(ttlMs);
    const { liveness, client } = link;
    const lifetimeMs = client.sessionTimeoutMs;
    const givenTtlMs = Math.min(ttlMs, lifetimeMs / TIMEOUT_PER_TTL);
    client.on("lost", () => {
      this.#nodes.forgetAll(link);
      this.#ended(link);
    });
    client.on("reconnected", () => {
      // The server has shortened it, also for grants that exist.
      if (client.sessionTimeoutMs < lifetimeMs) this.#giveUp(link, givenTtlMs);
      else this.#reconnected(link);
    });
    sweepRevocations(client, this.#layout).catch(() => {});
    return { id: link, ttlMs: givenTtlMs, provedAtMs: liveness.provedAtMs, lifetimeMs };
  }

  /** A write that changes nothing, and fails if a grant was revoked since the last one. */
  async prove(session: {
    readonly id: Link;
    readonly ttlMs: number;
  }): Promise<SessionProof | null> {
    const { id: link, ttlMs } = session;
    for (let attempt = 0; attempt < PROOF_ATTEMPTS; attempt++) {
      if (link.isOver) {
        // By the clock: a late reply could revive it, and its pings would keep its claims for ever.
        this.end(link).catch(() => {});
        return null;
      }
      const { client, node, version } = link;
      try {
        await client.multi([{ op: "check", path: node, version }]);
        return { provedAtMs: link.liveness.provedAtMs };
      } catch (error) {
        if (isCode(error, "SESSION_EXPIRED")) return null;
        if (isCode(error, "NO_NODE")) {
          // Without its node, the session can't be notified of revocations.
          this.#giveUp(link, ttlMs);
          return null;
        }
        if (!isCode(error, "BAD_VERSION")) throw error;
        const { stat } = await client.getData(node);
        await this.#revoked(link);
        link.version = stat.version;
      }
    }
    throw new Error("grants of this session were revoked again and again; retry");
  }

  provedAtMs({ liveness }: Link): number {
    return liveness.provedAtMs;
  }

  end(link: Link): Promise<void> {
    this.#nodes.forgetAll(link);
    return this.#links.end(link);
  }

  async listKeys(link: Link): Promise<Iterable<SessionKey>> {
    const { paths, reply } = await link.client.getEphemerals(this.#layout.names);
    this.#nodes.keepOnly(link, new Set(paths), reply.zxid);
    return this.#keysOf(link, paths);
  }

  claimKey(name: string, grantId: string): string {
    return this.#nodes.key(name, grantId);
  }

  async missingOf(link: Link, keys: readonly string[]): Promise<readonly string[]> {
    if (keys.length === 0) return [];
    const standing = new Set<string>();
    for (const { key } of await this.listKeys(link)) standing.add(key);
    return keys.filter((key) => !standing.has(key));
  }

  async deleteKeys(keys: readonly string[]): Promise<void> {
    await Promise.all(keys.map((key) => this.#nodes.delete(key)));
  }

  /**
   * Nothing can be granted under the session any more, and its grants are lost: their holders are notified. Their
   * nodes stay for a ttl unless they are released, so that work can stop before another client is granted the name.
   */
  #giveUp(link: Link, ttlMs: number): void {
    this.#ended(link);
    const timer = setTimeout(() => this.end(link).catch(() => {}), ttlMs).unref();
    link.client.on("lost", () => clearTimeout(timer));
    link.client.on("closed", () => clearTimeout(timer));
  }

  /** Each is read when the caller comes to it. */
  *#keysOf(link: Link, paths: readonly string[]): Generator<SessionKey> {
    for (const path of paths) {
      const read = this.#layout.read(path);
      const claim = read === null ? null : readClaim(read.node);
      if (read === null || claim === null) continue;
      const key = this.#nodes.key(read.name, claim.grantId);
      this.#nodes.add(key, path, link);
      yield { key, name: read.name, grantId: claim.grantId, isClaim: true };
    }
  }
}
