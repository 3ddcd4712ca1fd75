import type { Locks } from "../../core/locks.js";
import { type Event, opFor } from "../check/history.js";
import type { Excuse } from "../check/verdict.js";
import { machineMs, type TimeLine } from "../traffic/time-line.js";
import { EXCLUSION } from "./kinds.js";
import type { Intervention } from "./plan.js";

interface Revocation {
  readonly name: string;
  readonly holder: string;
  readonly token: bigint;
  readonly sinceMs: number;
  readonly atMs: number;
}

/** A request that got no reply takes effect within this time, or never. */
const LATER_MS = 10_000;

/** Forces releases and resizes semaphores, by a connection of its own. */
export class Operator {
  readonly #locks: Locks;
  readonly #timeLine: TimeLine;
  readonly #timers: NodeJS.Timeout[] = [];
  readonly #acting = new Set<Promise<void>>();
  readonly #revocations: Revocation[] = [];
  /** Where it is not known whether an intervention took effect. */
  readonly excuses: Excuse[] = [];

  constructor(locks: Locks, timeLine: TimeLine) {
    this.#locks = locks;
    this.#timeLine = timeLine;
  }

  start(interventions: readonly Intervention[], mayAct: () => boolean): void {
    for (const one of interventions) {
      const timer = setTimeout(() => {
        if (!mayAct()) return;
        const acting = this.#act(one).finally(() => this.#acting.delete(acting));
        this.#acting.add(acting);
      }, one.atMs);
      this.#timers.push(timer);
    }
  }

  /** Ends, and adds what it did to the time line. */
  async end(): Promise<void> {
    for (const timer of this.#timers) clearTimeout(timer);
    await Promise.all(this.#acting);
    // A holder may have heard of its grant after it was taken: only now all grants are known.
    for (const { name, holder, token, ...when } of this.#revocations) {
      const op = this.#timeLine.opOf(name, token) ?? this.#opBy(holder, name);
      if (op !== undefined) this.#timeLine.add({ kind: "revoked", op, token, ...when } as Event);
    }
  }

  /** The op of a grant that its holder never heard of, by the holder's label. */
  #opBy(holder: string, name: string): string | undefined {
    const acquire = /\((.*)\)$/.exec(holder)?.[1] ?? "";
    const ops = [acquire, opFor(acquire, name)];
    const asked = this.#timeLine.events.find(
      (event) => event.kind === "asked" && event.name === name && ops.includes(event.op),
    );
    return asked?.kind === "asked" ? asked.op : undefined;
  }

  async #act(intervention: Intervention): Promise<void> {
    const { name } = intervention;
    const sinceMs = machineMs();
    try {
      if (intervention.does === "resize") {
        const { limit } = intervention;
        // Before it is sent, too: it counts for whoever is granted meanwhile.
        this.#timeLine.add({ kind: "resized", atMs: sinceMs, sinceMs, name, limit });
        await this.#locks.semaphore(name, { permits: limit }).resize(limit);
        this.#timeLine.now({ kind: "resized", sinceMs, name, limit });
        return;
      }
      const holders = await this.#locks.forceRelease(name, { why: "holdfast verify" });
      const atMs = machineMs();
      for (const { holder, token } of holders) {
        this.#revocations.push({ name, holder, token, sinceMs, atMs });
      }
    } catch {
      // It may have taken effect, or do so later.
      const rules = [...EXCLUSION, "S6", "L1", "L2"] as const;
      this.excuses.push({ rules, fromMs: sinceMs, toMs: machineMs() + LATER_MS });
    }
  }
}
