import { LOCK_LIMIT, type Push, type Store } from "../../core/store.js";
import type { MemoryStore } from "../../stores/memory/index.js";
import type { ClaimRecord } from "../../stores/shared/claim-record.js";
import { delegate } from "../../testing/delegate.js";
import { type Event, type OpId, opFor } from "../check/history.js";
import { whenAnswered } from "./batches.js";
import type { World } from "./world.js";

/** The note in a holder's label that names its op; one label serves all names of a multi-lock. */
export const noteFor = (op: OpId, isForSeveral: boolean): string =>
  isForSeveral ? opFor(op, "*") : op;

/** The op of a holder's label, for one name. */
export const opOf = (holder: string, name: string): OpId =>
  (/\(([^()]*)\)$/.exec(holder)?.[1] ?? holder).replace("*", name);

/** The name without its namespace. */
export const plainName = (key: string): string => key.slice(key.indexOf(":") + 1);

/** The moment at which the store made a grant, and the limit after a resize. */
interface Made {
  readonly atMs: number;
  readonly limit: number | undefined;
}

/** Observes the store itself, which no client can: when a ticket was queued, and when a grant was made. */
export class Observer {
  readonly #world: World;
  readonly #record: (event: Event) => void;
  readonly #queued = new Set<OpId>();
  /** By token; and the latest by op, for a client that receives another token than the store drew. */
  readonly #made = new Map<bigint | OpId, Made>();
  readonly #received = new Set<bigint>();
  /** The expiry of each grant, by token. */
  #kept = new Map<bigint, { readonly op: OpId; readonly untilMs: number }>();
  /** The limits of resized names that are still in use. */
  readonly #limits = new Map<string, number>();

  constructor(world: World, record: (event: Event) => void) {
    this.#world = world;
    this.#record = record;
  }

  /** The store granted the claim and took the grant back within one step. */
  skipped({ holder, name }: ClaimRecord): void {
    const atMs = this.#world.nowMs;
    this.#record({ kind: "kept", atMs, op: opOf(holder, plainName(name)), untilMs: atMs });
  }

  /** Wraps the store itself. The wrapper replies at once, as the store does. */
  atStore(store: MemoryStore): Store {
    const made = (name: string, op: OpId, token: bigint): void => {
      if (this.#made.has(token)) return;
      const one = { atMs: this.#world.nowMs, limit: this.#limits.get(name) };
      this.#made.set(token, one);
      this.#made.set(op, one);
    };
    const watched = <T>(command: () => T): T => {
      for (const name of this.#limits.keys()) {
        if (!isInUse(store, name)) this.#limits.delete(name);
      }
      const answer = command();
      this.#look(store);
      return answer;
    };
    return {
      ...delegate(store),
      claim: (claim, push) =>
        watched(() => {
          const opAt = (key: string): OpId => opOf(claim.holder, plainName(key));
          const [first] = claim.names as [string];
          const answer = store.claim(claim, (one: Push) => {
            if (one.kind === "granted") made(first, opAt(first), one.grant.token);
            push(one);
          });
          if (answer.kind === "granted") {
            for (const [i, name] of claim.names.entries()) {
              made(name, opAt(name), answer.grants[i]!.token);
            }
          }
          const op = opAt(first);
          if (answer.kind === "queued" && !this.#queued.has(op)) {
            this.#queued.add(op);
            this.#record({ kind: "queued", atMs: this.#world.nowMs, op });
          }
          return answer;
        }),
      renew: (renewals) => watched(() => store.renew(renewals)),
      release: (releases) => watched(() => store.release(releases)),
      revoke: (key, by) =>
        watched(() => {
          const atMs = this.#world.nowMs;
          const holders = store.revoke(key, by);
          for (const { holder, token } of holders) {
            const op = opOf(holder, plainName(key));
            this.#record({ kind: "revoked", atMs, sinceMs: atMs, op, token });
          }
          return holders;
        }),
      resize: (key, limit) =>
        watched(() => {
          const atMs = this.#world.nowMs;
          const { limit: before = LOCK_LIMIT } = store.inspect(key) ?? {};
          const isResized = before !== LOCK_LIMIT && isInUse(store, key);
          // The same step first grants by the old limit and then by the new one.
          if (isResized) this.#limits.set(key, Math.max(before, limit));
          const answer = store.resize(key, limit);
          if (isResized) {
            this.#limits.set(key, limit);
            this.#record({ kind: "resized", atMs, sinceMs: atMs, name: plainName(key), limit });
          }
          return answer;
        }),
    };
  }

  /** Records the expiry of each grant that a command has changed. */
  #look(store: MemoryStore): void {
    const atMs = this.#world.nowMs;
    const kept = new Map<bigint, { readonly op: OpId; readonly untilMs: number }>();
    for (const { name, holders } of store.list("", 100)) {
      for (const { holder, token, expiresInMs, closed } of holders) {
        const op = opOf(holder, plainName(name));
        if (!closed) kept.set(token, { op, untilMs: atMs + expiresInMs });
      }
    }
    const before = this.#kept;
    this.#kept = kept;
    for (const [token, { op }] of before) {
      if (!kept.has(token)) this.#record({ kind: "kept", atMs, op, untilMs: atMs, token });
    }
    for (const [token, { op, untilMs }] of kept) {
      if (before.get(token)?.untilMs === untilMs) continue;
      this.#record({ kind: "kept", atMs, op, untilMs, token });
    }
  }

  /** Wraps a client's store: records the grants that its core receives. */
  atClient(store: Store): Store {
    const ops = new Map<string, OpId>();
    const recordGrant = (grantId: string, name: string, token: bigint): void => {
      const op = ops.get(`${grantId} ${name}`);
      const made = op === undefined ? undefined : (this.#made.get(token) ?? this.#made.get(op));
      if (op === undefined || made === undefined || this.#received.has(token)) return;
      this.#received.add(token);
      const { atMs, limit } = made;
      this.#record({ kind: "made", atMs, op, token, ...(limit === undefined ? {} : { limit }) });
    };
    return {
      ...delegate(store),
      claim: (claim, push) => {
        const { grantId, names } = claim;
        for (const name of names) {
          ops.set(`${grantId} ${name}`, opOf(claim.holder, plainName(name)));
        }
        const answer = store.claim(claim, (one) => {
          if (one.kind === "granted") recordGrant(grantId, names[0]!, one.grant.token);
          push(one);
        });
        return whenAnswered(answer, (known) => {
          const grants = known.kind === "granted" ? known.grants : [];
          for (const [i, { token }] of grants.entries()) recordGrant(grantId, names[i]!, token);
          return known;
        });
      },
      renew: (renewals) =>
        whenAnswered(store.renew(renewals), (answers) => {
          for (const [i, { grantId, name }] of renewals.entries()) {
            const answer = answers[i];
            if (answer?.kind === "granted") recordGrant(grantId, name, answer.grant.token);
          }
          return answers;
        }),
    };
  }
}

function isInUse(store: MemoryStore, name: string): boolean {
  const info = store.inspect(name);
  return info !== null && info.holders.length + info.waiters.length > 0;
}
