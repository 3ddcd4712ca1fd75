import { seededRandom } from "../../testing/seeded-random.js";
import type { Excuse } from "../check/verdict.js";
import { machineMs, type TimeLine } from "../traffic/time-line.js";
import type { Member } from "./crew.js";
import type { FaultKind, StoreFault } from "./kinds.js";
import type { PlannedFault } from "./plan.js";
import type { FaultRecord } from "./result.js";

/** A fault may have effects for this many ttls after it is healed. */
const AFTERMATH_TTLS = 2.5;
const AFTERMATH_MS = 2_000;
const MISSED = "nothing that it could strike was sent while it was active";

/** Injects the faults of a plan at their times, several at once, and heals them all. */
export class Injector {
  readonly #kinds: ReadonlyMap<string, FaultKind>;
  readonly #members: readonly Member[];
  readonly #timeLine: TimeLine;
  readonly #timers = new Set<NodeJS.Timeout>();
  readonly #inForce = new Map<StoreFault, { record: FaultRecord; kind: FaultKind }>();
  readonly #acting = new Set<Promise<void>>();
  readonly #injecting = new Set<StoreFault>();
  readonly records: FaultRecord[] = [];
  /** Faults that could not be injected or healed. They are errors of the verifier, not of the store. */
  readonly troubles: string[] = [];
  /** Numbers faults of the same name that are active at the same time. */
  readonly #names = new Set<string>();
  #over = false;
  /** Whether a fault could not be healed, so that the store may not work again. */
  hasUnhealed = false;

  constructor(kinds: readonly FaultKind[], members: readonly Member[], timeLine: TimeLine) {
    this.#kinds = new Map(kinds.map((kind) => [kind.name, kind]));
    this.#members = members;
    this.#timeLine = timeLine;
  }

  get active(): readonly string[] {
    return [...this.#inForce.values()].map(({ record }) => record.name);
  }

  /** Whether a fault other than those of workers and their connections is active. */
  get isStoreStruck(): boolean {
    return [...this.#inForce.values()].some(
      ({ kind: { hits, hitsRunner = hits !== "worker" && hits !== "connection" } }) => hitsRunner,
    );
  }

  /** Whether workers must be restarted before they can use the store again. */
  get isLockedOut(): boolean {
    return this.records.some(({ kind }) => this.#kinds.get(kind)?.locksOut);
  }

  /** Whether the clock of the store was wrong for some time. */
  get hasSetClock(): boolean {
    return this.records.some(({ kind }) => this.#kinds.get(kind)?.setsClock);
  }

  start(faults: readonly PlannedFault[]): void {
    for (const planned of faults) {
      this.#after(planned.atMs, () => this.#inject(planned));
    }
  }

  /** Heals all faults and injects no more. */
  async end(): Promise<void> {
    this.#over = true;
    for (const timer of this.#timers) clearTimeout(timer);
    // A fault that is still being injected may wait for another one to be healed: a slot can't be moved
    // while a server is down.
    const isInjected = (one: StoreFault): boolean => !this.#injecting.has(one);
    for (const one of [...this.#inForce.keys()].reverse().filter(isInjected)) await this.#heal(one);
    await Promise.all(this.#acting);
    for (const one of [...this.#inForce.keys()].reverse()) await this.#heal(one);
  }

  /** The times in which active faults are known to break a promise. */
  excuses(longestTtlMs: number): readonly Excuse[] {
    return this.records.flatMap(({ kind, fromMs, untilMs, client }) => {
      const { breaks = [], hits, hitsRunner } = this.#kinds.get(kind)!;
      // A connection of the runner is one that all workers have.
      const isOfOne = hits === "connection" && hitsRunner !== true;
      const of = isOfOne && client !== undefined ? { client } : {};
      return breaks.map((rule) => {
        // A place in the queue can only be lost while the fault is active; a grant that was lost is
        // believed for one ttl more.
        const ttls = rule === "L4" ? 0 : AFTERMATH_TTLS;
        return { rules: [rule], fromMs, toMs: untilMs + ttls * longestTtlMs + AFTERMATH_MS, ...of };
      });
    });
  }

  async #inject({ kind: name, worker, forMs, seed }: PlannedFault): Promise<void> {
    const kind = this.#kinds.get(name);
    const member = this.#members[worker];
    if (kind === undefined || member === undefined) return;
    if (kind.hits === "worker" && !member.isRunning) return;
    const one = kind.make(member, seededRandom(seed), forMs);
    if (one === null) return;
    const isOfWorker = kind.hits === "worker" || kind.hits === "connection";
    const record: FaultRecord = {
      kind: name,
      hits: kind.hits,
      name: this.#newName(one.name),
      ...(isOfWorker ? { client: member.client } : {}),
      fromMs: machineMs(),
      untilMs: Number.POSITIVE_INFINITY,
    };
    this.#inForce.set(one, { record, kind });
    // The history already has the pause or death of a worker.
    if (kind.hits !== "worker") {
      this.#timeLine.now({
        kind: "injected",
        fault: record.name,
        ...(kind.sparesStore ? { sparesStore: true } : {}),
      });
    }
    if (one.clockByMs !== undefined) {
      this.#timeLine.now({ kind: "clock-set", byMs: one.clockByMs });
    }
    this.#injecting.add(one);
    const failed = await one.inject().then(
      () => null,
      (error: Error) => error.message,
    );
    this.#injecting.delete(one);
    if (failed !== null) {
      this.troubles.push(`${one.name}: ${failed}`);
      this.#inForce.set(one, { record: { ...record, failed }, kind });
    }
    // It may have been injected halfway; the fault that was in its way is mostly over by then.
    this.#after(forMs, () => this.#heal(one));
  }

  /** The history knows faults by their names, and one may be injected while another like it is being healed. */
  #newName(name: string): string {
    let unused = name;
    for (let i = 2; this.#names.has(unused); i++) unused = `${name} (${i})`;
    this.#names.add(unused);
    return unused;
  }

  async #heal(one: StoreFault): Promise<void> {
    const struck = this.#inForce.get(one);
    if (struck === undefined) return;
    this.#inForce.delete(one);
    let isHealed = true;
    try {
      await one.heal();
    } catch (error) {
      this.troubles.push(`${one.name}, healing: ${(error as Error).message}`);
      isHealed = false;
      this.hasUnhealed = true;
    }
    if (one.clockByMs !== undefined) {
      this.#timeLine.now({ kind: "clock-set", byMs: -one.clockByMs });
    }
    const { record, kind } = struck;
    const missed = one.struck === 0 ? { failed: MISSED, ...record } : record;
    this.records.push({ ...missed, untilMs: machineMs() });
    if (kind.hits !== "worker" && isHealed) {
      this.#timeLine.now({ kind: "healed", fault: record.name });
    }
  }

  #after(ms: number, act: () => Promise<void>): void {
    if (this.#over) return;
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      const acting = act().finally(() => this.#acting.delete(acting));
      this.#acting.add(acting);
    }, ms);
    this.#timers.add(timer);
  }
}
