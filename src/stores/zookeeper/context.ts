import type { Clock } from "../../core/clock.js";
import type { Awaitable, LostAnswer } from "../../core/store.js";
import { SessionClaims } from "../shared/sessions/claims.js";
import type { SessionProof } from "../shared/sessions/session.js";
import { Sessions } from "../shared/sessions/sessions.js";
import { readFloor } from "./claim-reads.js";
import { toStoreError } from "./errors.js";
import type { Layout } from "./layout.js";
import { type Link, Links, type OpenClient } from "./link.js";
import { NameWatches } from "./name-watches.js";
import { Nodes } from "./nodes.js";
import { Queue } from "./queue.js";
import { readRevocations, reasonOf } from "./revocations.js";
import {
  type ZooKeeperClaim,
  type ZooKeeperSession,
  ZooKeeperSessionPort,
} from "./session-port.js";

/** Ttls are rounded up to a multiple of this, so that ttls that hardly differ share a session. */
const TTL_UNIT_MS = 100;
const MOST_RECENT = 10_000;

/** A set of recent texts: when it is full, it drops all of them. */
class RecentTexts extends Set<string> {
  override add(text: string): this {
    if (this.size >= MOST_RECENT) this.clear();
    return super.add(text);
  }
}

/** The objects that the claims, renewals and releases of one store share. */
export class ZooKeeperContext {
  readonly clock: Clock;
  readonly layout: Layout;
  readonly nodes = new Nodes();
  /** Names whose containers are likely to be there. */
  readonly containers = new RecentTexts();
  /** The ids of grants that were revoked, as far as that was noticed. */
  readonly revoked = new RecentTexts();
  readonly links: Links;
  /** The state of every claim of this store. */
  readonly claims: SessionClaims<ZooKeeperSession>;
  readonly sessions: Sessions<Link, SessionProof>;
  readonly toStoreError = toStoreError;

  constructor(open: OpenClient, clock: Clock, layout: Layout) {
    this.clock = clock;
    this.layout = layout;
    this.links = new Links(open, layout, (client, requests) => {
      return new NameWatches(client, requests, layout, (waiting, queue) => {
        const claim = this.claims.get(waiting.name, waiting.grantId);
        // Another claim with this id, under another session, does not wait here.
        if (claim === waiting)
          void this.claims.handOver(claim, () => this.complete(claim, queue, claim.token));
      });
    });
    const port = new ZooKeeperSessionPort(this.links, layout, this.nodes, {
      revoked: (link) => this.#dropRevoked(link),
      reconnected: (link) => void this.sessions.checkNow(link),
      ended: (link) => this.sessions.giveUp(link),
    });
    this.claims = new SessionClaims(clock, port, (claim) => claim.session.id.watches.remove(claim));
    this.sessions = new Sessions(port, clock, this.claims, TTL_UNIT_MS);
  }

  key({ name, grantId }: { readonly name: string; readonly grantId: string }): string {
    return this.nodes.key(name, grantId);
  }

  /** The claim holds its name in ZooKeeper. False: it was over before that was known here. */
  complete(claim: ZooKeeperClaim, queue: Queue, token: bigint): Awaitable<boolean> {
    const { name, grantId, session } = claim;
    if (!this.claims.has(claim)) return false;
    if (claim.state === "held" && claim.token === token) return true;
    if (queue.isFirst(grantId)) return this.#markHeld(claim, token, token);
    return readFloor(session.id, name, queue, { grantId, token }).then((floor) =>
      this.#markHeld(claim, token, floor),
    );
  }

  drop(claim: ZooKeeperClaim): void {
    this.claims.drop(claim);
    this.nodes.forget(this.key(claim));
  }

  /** Reads why a claim is neither granted nor waiting. */
  async whyLost(name: string, grantId: string): Promise<LostAnswer> {
    const [{ children, resize }, { revocations }] = await this.links.withAny((link) =>
      Promise.all([link.requests.readLatest(name), readRevocations(link, name)]),
    );
    const revoked = revocations.find((one) => one.grantId === grantId);
    if (revoked !== undefined) this.revoked.add(grantId);
    const revokedBecause = revoked === undefined ? null : reasonOf(revoked);
    return new Queue(name, children, resize).lostAnswer(grantId, revokedBecause);
  }

  /** False: it was revoked meanwhile. */
  #markHeld(claim: ZooKeeperClaim, token: bigint, floor: bigint): boolean {
    if (!this.claims.has(claim)) return false;
    this.claims.markHeld(claim, token, floor);
    return true;
  }

  /** Drops the claims of the session whose nodes are gone, except those that are newer than what was read. */
  async #dropRevoked(link: Link): Promise<void> {
    const { paths, reply } = await link.client.getEphemerals(this.layout.names);
    const standing = new Set(paths);
    for (const claim of [...this.claims.all()]) {
      const node = this.nodes.get(this.key(claim), link);
      if (node === undefined || node.czxid > reply.zxid || standing.has(node.path)) continue;
      if (claim.session.id !== link) continue;
      this.revoked.add(claim.grantId);
      this.drop(claim);
    }
  }
}
