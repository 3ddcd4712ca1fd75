import fc from "fast-check";
import { LOCK_LIMIT } from "../../../src/core/store.js";
import type { Event, History } from "../../../src/verify/check/history.js";
import { ALONE, SHARED } from "./story.js";

const TTL_MS = 300;
const USABLE_MS = 270;
const STEP_MS = 5;
const NAMES = ["one", "two"];

/** The next action, and the number of time steps before it. */
export type Action =
  | {
      readonly do: "ask";
      readonly client: number;
      readonly name: number;
      readonly shared: boolean;
      readonly waitMs: number;
    }
  | {
      readonly do: "use" | "release" | "look" | "abort" | "pause" | "resume" | "kill";
      readonly client: number;
    }
  | { readonly do: "inject" | "heal" | "see" }
  | { readonly do: "revoke"; readonly name: number };

const CLIENTS = 4;
const client = fc.nat(CLIENTS - 1);

export const plans: fc.Arbitrary<readonly (readonly [steps: number, Action])[]> = fc.array(
  fc.tuple(
    fc.nat(25),
    fc.oneof(
      {
        weight: 6,
        arbitrary: fc.record({
          do: fc.constant("ask" as const),
          client,
          name: fc.nat(NAMES.length - 1),
          shared: fc.boolean(),
          waitMs: fc.constantFrom(0, 200, 1_000, Number.POSITIVE_INFINITY),
        }),
      },
      {
        weight: 8,
        arbitrary: fc.record({
          do: fc.constantFrom(
            "use",
            "use",
            "release",
            "release",
            "look",
            "abort",
            "pause",
            "resume",
            "resume",
            "kill" as const,
          ),
          client,
        }),
      },
      {
        weight: 2,
        arbitrary: fc.record({ do: fc.constantFrom("inject", "heal", "heal", "see" as const) }),
      },
      {
        weight: 1,
        arbitrary: fc.record({
          do: fc.constant("revoke" as const),
          name: fc.nat(NAMES.length - 1),
        }),
      },
    ),
  ),
  { minLength: 5, maxLength: 120 },
) as fc.Arbitrary<readonly (readonly [number, Action])[]>;

/** A claim as the store has it, and as its client knows it. */
interface Claim {
  readonly op: string;
  readonly client: Client;
  readonly name: string;
  readonly shared: boolean;
  readonly giveUpMs: number;
  expiresMs: number;
  token: bigint;
  floor: bigint;
  /** The client's view. */
  sentMs: number;
  untilMs: number;
  state: "asking" | "waiting" | "holding" | "over";
}

interface Client {
  name: string;
  isPaused: boolean;
  lives: number;
  claim: Claim | null;
}

/** A correct lock with a fair queue, run step by step: the history of a run of this plan. */
export function runModel(plan: readonly (readonly [number, Action])[]): History {
  return new Model().run(plan);
}

class Model {
  readonly #events: Event[] = [];
  readonly #clients: Client[] = Array.from({ length: CLIENTS }, (_, i) => ({
    name: `client-${i}`,
    isPaused: false,
    lives: 0,
    claim: null,
  }));
  #claims: Claim[] = [];
  readonly #resources = NAMES.map(() => ({ step: 0, highest: 0n, value: 0 }));
  #nowMs = 0;
  #token = 100n;
  #ops = 0;
  #isStruck = false;

  run(plan: readonly (readonly [number, Action])[]): History {
    for (const [steps, action] of plan) {
      this.#pass(steps);
      this.#act(action);
    }
    this.#act({ do: "heal" });
    for (let i = 0; i < CLIENTS; i++) this.#act({ do: "resume", client: i });
    for (let i = 0; i < 40; i++) {
      this.#pass(TTL_MS / STEP_MS);
      for (let client = 0; client < CLIENTS; client++) {
        this.#act({ do: i < 20 ? "release" : "abort", client });
        this.#act({ do: "release", client });
      }
    }
    for (const { name } of this.#clients) {
      this.#record({ kind: "left", client: name, waiters: 0, timers: 0, sockets: 0 });
    }
    return this.#events;
  }

  #act(action: Action): void {
    const who = "client" in action ? this.#clients[action.client]! : null;
    const claim = who?.claim ?? null;
    const isReady = who !== null && !who.isPaused;
    switch (action.do) {
      case "ask": {
        if (!isReady || claim !== null) return;
        const asked: Claim = {
          op: `op-${++this.#ops}`,
          client: who,
          name: NAMES[action.name]!,
          shared: action.shared,
          giveUpMs: this.#nowMs + action.waitMs,
          expiresMs: 0,
          token: 0n,
          floor: 0n,
          sentMs: this.#nowMs,
          untilMs: 0,
          state: "asking",
        };
        who.claim = asked;
        this.#record({
          kind: "asked",
          op: asked.op,
          client: who.name,
          name: asked.name,
          ...(action.shared ? SHARED : ALONE),
          ttlMs: TTL_MS,
          waitMs: action.waitMs,
        });
        break;
      }
      case "use":
        if (isReady && claim?.state === "holding") this.#use(claim);
        break;
      case "look":
        if (isReady && claim?.state === "holding") {
          this.#record({ kind: "looked", op: claim.op, held: this.#nowMs < claim.untilMs });
        }
        break;
      case "release":
        if (isReady && claim?.state === "holding" && this.#nowMs < claim.untilMs) {
          const answer = this.#claims.includes(claim) ? "released" : "lost";
          const result = this.#isStruck ? "unknown" : answer;
          this.#record({ kind: "releasing", op: claim.op });
          this.#end(claim);
          this.#record({ kind: "released", op: claim.op, result });
        }
        break;
      case "abort":
        if (isReady && (claim?.state === "waiting" || claim?.state === "asking")) {
          this.#record({ kind: "aborting", op: claim.op });
          this.#giveUp(claim, "aborted");
        }
        break;
      case "pause":
        if (isReady) {
          who.isPaused = true;
          this.#record({ kind: "paused", client: who.name });
        }
        break;
      case "resume":
        if (who?.isPaused) {
          who.isPaused = false;
          this.#record({ kind: "resumed", client: who.name });
        }
        break;
      case "kill":
        if (who === null || who.lives > 2) return;
        this.#record({ kind: "killed", client: who.name });
        who.claim = null;
        who.isPaused = false;
        // Sometimes the client comes back under its old name.
        who.lives++;
        if (who.lives === 2) who.name = `${who.name}-again`;
        break;
      case "inject":
        if (!this.#isStruck)
          this.#record({ kind: "injected", fault: "cut off", sparesStore: true });
        this.#isStruck = true;
        break;
      case "heal":
        if (this.#isStruck) this.#record({ kind: "healed", fault: "cut off" });
        this.#isStruck = false;
        break;
      case "revoke":
        for (const claim of [...this.#claims]) {
          if (claim.name !== NAMES[action.name] || claim.token === 0n) continue;
          const { op, token } = claim;
          this.#record({ kind: "revoked", sinceMs: this.#nowMs, op, token });
          this.#claims = this.#claims.filter((one) => one !== claim);
        }
        this.#advance();
        break;
      case "see":
        for (const name of NAMES) {
          const claims = this.#claims.filter(
            (one) => one.name === name && one.expiresMs > this.#nowMs,
          );
          this.#record({
            kind: "seen",
            sinceMs: this.#nowMs,
            name,
            holders: claims
              .filter(({ token }) => token > 0n)
              .map(({ op, token }) => ({ op, token })),
            waiters: claims.filter(({ token }) => token === 0n).map(({ op }) => op),
          });
        }
        break;
    }
  }

  #pass(steps: number): void {
    for (let i = 0; i < steps; i++) {
      this.#nowMs += STEP_MS;
      this.#advance();
      for (const { isPaused, claim } of this.#clients) {
        if (claim !== null && !isPaused) this.#live(claim);
      }
      this.#advance();
    }
  }

  /** In the store: expired claims go, and the first in the queue are granted while they fit. */
  #advance(): void {
    this.#claims = this.#claims.filter(({ expiresMs }) => expiresMs > this.#nowMs);
    for (const name of NAMES) {
      const claims = this.#claims.filter((one) => one.name === name);
      const holders = claims.filter(({ token }) => token > 0n);
      for (const one of claims) {
        if (one.token > 0n) continue;
        const inUse = holders.reduce((sum, { shared }) => sum + (shared ? 1 : LOCK_LIMIT), 0);
        if (inUse + (one.shared ? 1 : LOCK_LIMIT) > LOCK_LIMIT) break;
        one.token = ++this.#token;
        one.floor = holders.reduce((low, { token }) => (token < low ? token : low), one.token);
        holders.push(one);
      }
    }
  }

  /** Steps of a client that runs. */
  #live(claim: Claim): void {
    if (claim.state === "holding" && this.#nowMs >= claim.untilMs) {
      this.#record({ kind: "lost", op: claim.op, reason: "expired" });
      this.#end(claim);
      return;
    }
    const isDue = claim.state === "asking" || this.#nowMs >= claim.sentMs + TTL_MS / 3;
    if (!this.#isStruck && (isDue || claim.token > 0n)) this.#send(claim, isDue);
    if (claim.state === "asking" || claim.state === "waiting") {
      if (this.#nowMs >= claim.giveUpMs)
        this.#giveUp(claim, this.#isStruck ? "unknown" : "timeout");
    }
  }

  /** A claim, a renewal, or only the receipt of a grant. */
  #send(claim: Claim, isDue: boolean): void {
    const isThere = this.#claims.includes(claim);
    if (!isThere && claim.state !== "holding") {
      claim.token = 0n;
      this.#claims.push(claim);
    }
    if (isDue || !isThere) {
      if (!isThere && claim.state === "holding") return;
      claim.sentMs = this.#nowMs;
      claim.expiresMs = this.#nowMs + TTL_MS;
    }
    this.#advance();
    const untilMs = claim.sentMs + USABLE_MS;
    if (claim.state === "holding") {
      if (isDue) this.#record({ kind: "renewed", op: claim.op, untilMs });
      claim.untilMs = untilMs;
    } else if (claim.token > 0n) {
      if (untilMs <= this.#nowMs) {
        // Too old: the grant does not count until the store has extended it.
        claim.sentMs = this.#nowMs;
        claim.expiresMs = this.#nowMs + TTL_MS;
      }
      claim.untilMs = claim.sentMs + USABLE_MS;
      claim.state = "holding";
      const { op, token, floor } = claim;
      this.#record({ kind: "granted", op, token, floor, untilMs: claim.untilMs });
    } else if (claim.state === "asking") {
      claim.state = "waiting";
      this.#record({ kind: "queued", op: claim.op });
    }
  }

  #use(claim: Claim): void {
    const resource = this.#resources[NAMES.indexOf(claim.name)]!;
    const { op, token, floor } = claim;
    const accepted = token >= resource.highest;
    if (accepted && floor > resource.highest) resource.highest = floor;
    const about = { op, resource: claim.name, token, floor, accepted };
    this.#record({ kind: "entered", ...about, step: ++resource.step });
    if (!accepted || claim.shared) return;
    const read = resource.value++;
    this.#record({ kind: "wrote", ...about, step: ++resource.step, read, value: resource.value });
  }

  #giveUp(claim: Claim, outcome: "aborted" | "timeout" | "unknown"): void {
    this.#end(claim);
    this.#record({ kind: "not-granted", op: claim.op, outcome });
  }

  #end(claim: Claim): void {
    claim.client.claim = null;
    claim.state = "over";
    if (!this.#isStruck) this.#claims = this.#claims.filter((one) => one !== claim);
  }

  #record(event: EventWithoutTime): void {
    this.#events.push({ atMs: this.#nowMs, ...event } as Event);
  }
}

type EventWithoutTime<E extends Event = Event> = E extends unknown ? Omit<E, "atMs"> : never;
