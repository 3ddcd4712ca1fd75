import { LOCK_LIMIT } from "../../src/core/store.js";
import { seededRandom } from "../../src/testing/seeded-random.js";
import type { Event, History } from "../../src/verify/check/history.js";
import type { FaultRecord, Hits } from "../../src/verify/runner/result.js";

export interface Busy {
  readonly seed?: number;
  readonly workers?: number;
  readonly forMs?: number;
  readonly names?: readonly string[];
  /** At this moment the store forgets its holders, and grants their names again. */
  readonly forgetsAtMs?: number;
}

interface Ask {
  readonly op: string;
  readonly client: string;
  readonly name: string;
  readonly permits: number;
  readonly holdMs: number;
  readonly life: number;
  token: bigint;
  floor: bigint;
  expiresAtMs: number;
  isOver: boolean;
}

const TTL_MS = 1_000;
/** The client's deadline is earlier than the store's by this. */
const DRIFT_MS = 20;
const LIMIT = 4;

/** As many events as a real run of a minute has: a small model of workers, one store and faults. */
export function busyHistory(options: Busy = {}): {
  readonly history: History;
  readonly faults: readonly FaultRecord[];
} {
  return new Model(options).run();
}

class Model {
  readonly #forMs: number;
  readonly #forgetsAtMs: number;
  readonly #workers: readonly string[];
  readonly #names: readonly string[];
  readonly #random;
  readonly #events: Event[] = [];
  readonly #faults: FaultRecord[] = [];
  readonly #agenda: { atMs: number; run: () => void }[] = [];
  readonly #holders = new Map<string, Ask[]>();
  readonly #queues = new Map<string, Ask[]>();
  readonly #lives = new Map<string, number>();
  readonly #floors = new Map<string, bigint>();
  readonly #steps = new Map<string, number>();
  readonly #values = new Map<string, number>();
  #token = 0n;
  #ops = 0;
  #nowMs = 0;

  constructor({ seed = 1, workers = 8, forMs = 60_000, names, forgetsAtMs }: Busy) {
    this.#random = seededRandom(seed);
    this.#forMs = forMs;
    this.#forgetsAtMs = forgetsAtMs ?? Number.POSITIVE_INFINITY;
    this.#names = names ?? ["orders", "invoices", "stock", "mail pool", "ledger"];
    this.#workers = Array.from({ length: workers }, (_, i) => `w${i + 1}`);
  }

  run() {
    this.#planFaults();
    for (const worker of this.#workers) this.#at(this.#draw(0, 30), () => this.#ask(worker));
    this.#at(this.#forgetsAtMs, () => {
      this.#holders.clear();
      for (const name of this.#names) this.#advance(name);
    });
    while (this.#agenda.length > 0) {
      const next = this.#agenda.shift()!;
      if (next.atMs > this.#forMs) break;
      this.#nowMs = next.atMs;
      next.run();
    }
    return { history: this.#events.sort((a, b) => a.atMs - b.atMs), faults: this.#faults };
  }

  #draw(from: number, to: number): number {
    return from + this.#random.unit() * (to - from);
  }

  #at(atMs: number, run: () => void): void {
    const place = this.#agenda.findLastIndex((one) => one.atMs <= atMs);
    this.#agenda.splice(place + 1, 0, { atMs, run });
  }

  #record(event: Event): void {
    if (event.atMs <= this.#forMs) this.#events.push(event);
  }

  #planFaults(): void {
    const kinds: readonly (readonly [string, Hits, number, number])[] = [
      ["worker killed", "worker", 300, 900],
      ["worker paused", "worker", 300, 2_400],
      ["connection cut", "connection", 200, 1_500],
      ["subscription cut", "connection", 400, 2_500],
      ["replies held back", "connection", 300, 1_200],
      ["connection slow", "connection", 300, 1_200],
      ["worker paused", "worker", 300, 2_400],
      ["primary paused", "server", 300, 1_600],
      ["primary restarted", "server", 200, 800],
      ["failover", "cluster", 500, 1_800],
    ];
    for (let atMs = 800; atMs < this.#forMs - 3_500; atMs += this.#draw(500, 2_600)) {
      const [kind, hits, min, max] = kinds[Math.floor(this.#random.unit() * kinds.length)]!;
      const client = this.#workers[Math.floor(this.#random.unit() * this.#workers.length)]!;
      const untilMs = atMs + this.#draw(min, max);
      if (hits === "worker" || hits === "connection") {
        const name = `${client}: ${kind}`;
        if (this.#faults.some((one) => one.client === client && one.untilMs > atMs)) continue;
        this.#faults.push({ kind, hits, name, client, fromMs: atMs, untilMs });
      } else {
        const name = hits === "server" ? `redis-1: ${kind}` : kind;
        this.#faults.push({ kind, hits, name, fromMs: atMs, untilMs });
      }
    }
    for (const { name, kind, client, fromMs, untilMs } of this.#faults) {
      this.#record({ kind: "injected", atMs: fromMs, fault: name, sparesStore: true });
      this.#record({ kind: "healed", atMs: untilMs, fault: name });
      if (kind === "worker killed") this.#at(fromMs, () => this.#kill(client!, untilMs));
      if (kind === "worker paused") {
        this.#record({ kind: "paused", atMs: fromMs, client: client! });
        this.#record({ kind: "resumed", atMs: untilMs, client: client! });
      }
    }
  }

  /** The time at which the worker runs: after its pause, if it is paused then. */
  #awake(client: string, atMs: number): number {
    const pause = this.#faults.find(
      (one) =>
        one.kind === "worker paused" &&
        one.client === client &&
        one.fromMs <= atMs &&
        one.untilMs > atMs,
    );
    return pause === undefined ? atMs : pause.untilMs + this.#draw(0.2, 2);
  }

  /** The time at which a message between the worker and the store arrives. */
  #reach(client: string, atMs: number): number {
    const hindering = this.#faults.find(
      (one) =>
        one.hits !== "worker" &&
        (one.client === undefined || one.client === client) &&
        one.fromMs <= atMs &&
        one.untilMs > atMs,
    );
    return (hindering?.untilMs ?? atMs) + this.#draw(0.3, 2.4);
  }

  #kill(client: string, backAtMs: number): void {
    this.#record({ kind: "killed", atMs: this.#nowMs, client });
    this.#lives.set(client, (this.#lives.get(client) ?? 0) + 1);
    this.#at(backAtMs, () => this.#ask(client));
  }

  #isAlive = ({ client, life }: Ask): boolean => (this.#lives.get(client) ?? 0) === life;

  #ask(client: string): void {
    const index = Math.floor(this.#random.unit() ** 1.6 * this.#names.length);
    const name = this.#names[index]!;
    const isPool = name.includes("pool");
    const limit = isPool ? LIMIT : LOCK_LIMIT;
    const isShared = !isPool && index === 2 && this.#random.unit() < 0.6;
    const permits = isPool || isShared ? 1 : limit;
    const op = `${client}-${++this.#ops}`;
    const life = this.#lives.get(client) ?? 0;
    const holdMs = this.#random.unit() < 0.004 ? this.#draw(700, 2_600) : this.#draw(1, 15);
    const ask: Ask = {
      ...{ op, client, name, permits, holdMs, life },
      ...{ token: 0n, floor: 0n, expiresAtMs: 0, isOver: false },
    };
    const waitMs = this.#random.unit() < 0.15 ? 150 : 3_000;
    const atMs = this.#nowMs;
    this.#record({ kind: "asked", atMs, op, client, name, permits, limit, ttlMs: TTL_MS, waitMs });
    this.#at(this.#reach(client, atMs), () => {
      if (ask.isOver) return;
      const queue = this.#queues.get(name) ?? [];
      this.#queues.set(name, [...queue, ask]);
      this.#advance(name);
    });
    this.#at(atMs + waitMs, () => this.#giveUp(ask));
  }

  #giveUp(ask: Ask): void {
    if (ask.token > 0n || ask.isOver) return;
    this.#end(ask);
    if (!this.#isAlive(ask)) return;
    const atMs = this.#awake(ask.client, this.#nowMs);
    this.#record({ kind: "not-granted", atMs, op: ask.op, outcome: "timeout" });
    this.#at(atMs + this.#draw(2, 20), () => this.#isAlive(ask) && this.#ask(ask.client));
  }

  #end(ask: Ask): void {
    ask.isOver = true;
    for (const places of [this.#queues, this.#holders]) {
      places.set(
        ask.name,
        (places.get(ask.name) ?? []).filter((one) => one !== ask),
      );
    }
    this.#advance(ask.name);
  }

  /** Grants to the first waiters, as long as they fit. */
  #advance(name: string): void {
    const all = name.includes("pool") ? LIMIT : LOCK_LIMIT;
    for (;;) {
      const holders = this.#holders.get(name) ?? [];
      const [next, ...others] = this.#queues.get(name) ?? [];
      const used = holders.reduce((sum, { permits }) => sum + permits, 0);
      if (next === undefined || used + next.permits > all) return;
      this.#queues.set(name, others);
      if (!this.#isAlive(next)) continue;
      this.#holders.set(name, [...holders, next]);
      this.#grant(next);
    }
  }

  #grant(ask: Ask): void {
    ask.token = ++this.#token;
    const holders = this.#holders.get(ask.name) ?? [];
    ask.floor = holders.reduce((low, { token }) => (token < low ? token : low), ask.token);
    const madeAtMs = this.#nowMs;
    this.#expireAt(ask, madeAtMs + TTL_MS);
    const heardAtMs = this.#awake(ask.client, this.#reach(ask.client, madeAtMs));
    this.#at(heardAtMs, () => {
      if (!this.#isAlive(ask)) return;
      const untilMs = madeAtMs + TTL_MS - DRIFT_MS;
      if (heardAtMs >= untilMs) {
        this.#record({ kind: "not-granted", atMs: heardAtMs, op: ask.op, outcome: "unknown" });
        this.#at(heardAtMs + 5, () => this.#isAlive(ask) && this.#ask(ask.client));
        return;
      }
      const { token, op, floor } = ask;
      this.#record({ kind: "granted", atMs: heardAtMs, op, token, floor, untilMs });
      this.#hold(ask, heardAtMs, untilMs);
    });
  }

  #expireAt(ask: Ask, atMs: number): void {
    ask.expiresAtMs = atMs;
    this.#at(atMs, () => {
      if (ask.expiresAtMs === atMs && !ask.isOver) this.#end(ask);
    });
  }

  #hold(ask: Ask, fromMs: number, untilMs: number): void {
    const isExclusive = ask.permits === LOCK_LIMIT;
    const read = this.#values.get(ask.name) ?? 0;
    if (isExclusive) this.#access(ask, read, "entered");
    const leaveAtMs = this.#awake(ask.client, fromMs + ask.holdMs);
    const renewAtMs = this.#awake(ask.client, this.#nowMs + TTL_MS / 3);
    const next = Math.min(leaveAtMs, renewAtMs);
    if (next >= untilMs) {
      const atMs = this.#awake(ask.client, untilMs);
      this.#at(atMs, () => this.#lose(ask, read));
      return;
    }
    this.#at(next, () => {
      if (!this.#isAlive(ask)) return;
      if (leaveAtMs <= renewAtMs) this.#release(ask, read);
      else this.#renew(ask, leaveAtMs, untilMs, read);
    });
  }

  #renew(ask: Ask, leaveAtMs: number, untilMs: number, read: number): void {
    const sentAtMs = this.#nowMs;
    const storeAtMs = this.#reach(ask.client, sentAtMs);
    const heardAtMs = this.#awake(ask.client, this.#reach(ask.client, storeAtMs));
    if (heardAtMs >= untilMs) {
      this.#at(this.#awake(ask.client, untilMs), () => this.#lose(ask, read));
      return;
    }
    this.#at(storeAtMs, () => {
      if (!ask.isOver) this.#expireAt(ask, storeAtMs + TTL_MS);
    });
    this.#at(heardAtMs, () => {
      if (!this.#isAlive(ask)) return;
      const renewedUntilMs = sentAtMs + TTL_MS - DRIFT_MS;
      this.#record({ kind: "renewed", atMs: heardAtMs, op: ask.op, untilMs: renewedUntilMs });
      const next = this.#awake(
        ask.client,
        Math.min(Math.max(leaveAtMs, heardAtMs), heardAtMs + 300),
      );
      if (next >= renewedUntilMs) {
        this.#at(this.#awake(ask.client, renewedUntilMs), () => this.#lose(ask, read));
        return;
      }
      this.#at(next, () => {
        if (!this.#isAlive(ask)) return;
        if (leaveAtMs <= this.#nowMs) this.#release(ask, read);
        else this.#renew(ask, leaveAtMs, renewedUntilMs, read);
      });
    });
  }

  #lose(ask: Ask, read: number): void {
    if (!this.#isAlive(ask)) return;
    this.#record({ kind: "lost", atMs: this.#nowMs, op: ask.op, reason: "expired" });
    // A write in flight arrives late, and the fence decides.
    if (ask.permits === LOCK_LIMIT) this.#access(ask, read, "wrote");
    this.#at(this.#nowMs + this.#draw(5, 30), () => this.#isAlive(ask) && this.#ask(ask.client));
  }

  #release(ask: Ask, read: number): void {
    const { op, client } = ask;
    if (ask.permits === LOCK_LIMIT) this.#access(ask, read, "wrote");
    const atMs = this.#nowMs + 0.2;
    this.#record({ kind: "releasing", atMs, op });
    const storeAtMs = this.#reach(client, atMs);
    this.#at(storeAtMs, () => this.#end(ask));
    const heardAtMs = this.#awake(client, this.#reach(client, storeAtMs));
    this.#at(heardAtMs, () => {
      if (!this.#isAlive(ask)) return;
      this.#record({ kind: "released", atMs: heardAtMs, op, result: "released" });
      this.#at(heardAtMs + this.#draw(1, 10), () => this.#isAlive(ask) && this.#ask(client));
    });
  }

  #access(ask: Ask, read: number, kind: "entered" | "wrote"): void {
    const { op, token, name: resource } = ask;
    const floor = this.#floors.get(resource) ?? 0n;
    const accepted = token >= floor;
    if (accepted) this.#floors.set(resource, token);
    const step = (this.#steps.get(resource) ?? 0) + 1;
    this.#steps.set(resource, step);
    const all = { atMs: this.#nowMs + 0.1, op, resource, step, token, floor: token, accepted };
    if (kind === "entered") {
      this.#record({ kind, ...all });
      return;
    }
    if (accepted) this.#values.set(resource, read + 1);
    this.#record({ kind, ...all, read, value: read + 1 });
  }
}
