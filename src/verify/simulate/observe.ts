import type { NameInfo, Push, Store } from "../../core/store.js";
import { delegate } from "../../testing/delegate.js";
import type { Event, OpId } from "../check/history.js";
import type { World } from "./world.js";

/** The op that a holder's label names. */
export const opOf = (holder: string): OpId => /\(([^()]*)\)$/.exec(holder)?.[1] ?? holder;

/** Looks into the store, which no client can: when a ticket stood, and when a grant was made. */
export class Observer {
  readonly #world: World;
  readonly #record: (event: Event) => void;
  readonly #queued = new Set<OpId>();
  /** By token; and by grantId the latest, for a client that is told another token than the store drew. */
  readonly #madeAtMs = new Map<bigint | string, number>();
  readonly #told = new Set<bigint>();
  readonly #keptUntilMs = new Map<OpId, number>();

  constructor(world: World, record: (event: Event) => void) {
    this.#world = world;
    this.#record = record;
  }

  /** At the store itself. */
  atStore(store: Store): Store {
    const made = (grantId: string, token: bigint): void => {
      if (this.#madeAtMs.has(token)) return;
      this.#madeAtMs.set(token, this.#world.nowMs);
      this.#madeAtMs.set(grantId, this.#world.nowMs);
    };
    return {
      ...delegate(store),
      claim: async (claim, push) => {
        const answer = await store.claim(claim, (one: Push) => {
          if (one.kind === "granted") made(claim.grantId, one.grant.token);
          push(one);
        });
        const op = opOf(claim.holder);
        if (answer.kind === "granted") made(claim.grantId, answer.grants[0]!.token);
        if (answer.kind === "queued" && !this.#queued.has(op)) {
          this.#queued.add(op);
          this.#record({ kind: "queued", atMs: this.#world.nowMs, op });
        }
        this.#look(store);
        return answer;
      },
      renew: async (renewals) => {
        const answers = await store.renew(renewals);
        this.#look(store);
        return answers;
      },
      release: async (releases) => {
        const answers = await store.release(releases);
        this.#look(store);
        return answers;
      },
    };
  }

  /** Until when the store keeps what, wherever a command has changed that. */
  #look(store: Store): void {
    const atMs = this.#world.nowMs;
    const kept = new Map<OpId, number>();
    for (const { holders } of store.list("", 100) as readonly NameInfo[]) {
      for (const { holder, expiresInMs } of holders) kept.set(opOf(holder), atMs + expiresInMs);
    }
    for (const op of new Set([...kept.keys(), ...this.#keptUntilMs.keys()])) {
      const untilMs = kept.get(op) ?? atMs;
      if (this.#keptUntilMs.get(op) === untilMs) continue;
      if (kept.has(op)) this.#keptUntilMs.set(op, untilMs);
      else this.#keptUntilMs.delete(op);
      this.#record({ kind: "kept", atMs, op, untilMs });
    }
  }

  /** At a client: what its core is told in the end. */
  atClient(store: Store): Store {
    const ops = new Map<string, OpId>();
    const told = (grantId: string, token: bigint): void => {
      const op = ops.get(grantId);
      const atMs = this.#madeAtMs.get(token) ?? this.#madeAtMs.get(grantId);
      if (op === undefined || atMs === undefined || this.#told.has(token)) return;
      this.#told.add(token);
      this.#record({ kind: "made", atMs, op, token });
    };
    return {
      ...delegate(store),
      claim: async (claim, push) => {
        ops.set(claim.grantId, opOf(claim.holder));
        const answer = await store.claim(claim, (one) => {
          if (one.kind === "granted") told(claim.grantId, one.grant.token);
          push(one);
        });
        if (answer.kind === "granted") told(claim.grantId, answer.grants[0]!.token);
        return answer;
      },
      renew: async (renewals) => {
        const answers = await store.renew(renewals);
        for (const [i, answer] of answers.entries()) {
          if (answer.kind === "granted") told(renewals[i]!.grantId, answer.grant.token);
        }
        return answers;
      },
    };
  }
}
