import type { Locks } from "../../locks.js";
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

/** Forces releases and resizes semaphores, over a connection of its own. */
export class Operator {
  readonly #locks: Locks;
  readonly #timeLine: TimeLine;
  readonly #timers: NodeJS.Timeout[] = [];
  readonly #acting = new Set<Promise<void>>();
  readonly #revocations: Revocation[] = [];
  /** Times in which it is unknown whether an intervention took effect. */
  readonly excuses: Excuse[] = [];

  constructor(locks: Locks, timeLine: TimeLine) {
    this.#locks = locks;
    this.#timeLine = timeLine;
  }

  start(interventions: readonly Intervention[], mayAct: () => boolean): void {
    for (const one of interventions) {
      const timer = setTimeout(() => {
        if (!mayAct()) return;
        const acting = this.#act(one, mayAct).finally(() => this.#acting.delete(acting));
        this.#acting.add(acting);
      }, one.atMs);
      this.#timers.push(timer);
    }
  }

  /** Stops, and adds its interventions to the time line. */
  async end(): Promise<void> {
    for (const timer of this.#timers) clearTimeout(timer);
    await Promise.all(this.#acting);
    // A holder may have learned of its grant after the forced release, so all grants are known only
    // now.
    for (const { name, holder, token, ...when } of this.#revocations) {
      const op = this.#timeLine.opOf(name, token) ?? this.#opBy(holder, name);
      if (op !== undefined) this.#timeLine.add({ kind: "revoked", op, token, ...when } as Event);
    }
  }

  /** The op of a grant that its holder never learned of, found by the holder's label. */
  #opBy(holder: string, name: string): string | undefined {
    const acquire = /\((.*)\)$/.exec(holder)?.[1] ?? "";
    const ops = [acquire, opFor(acquire, name)];
    const asked = this.#timeLine.events.find(
      (event) => event.kind === "asked" && event.name === name && ops.includes(event.op),
    );
    return asked?.kind === "asked" ? asked.op : undefined;
  }

  async #act(intervention: Intervention, mayAct: () => boolean): Promise<void> {
    const { name } = intervention;
    const sinceMs = machineMs();
    try {
      if (intervention.does === "resize") {
        const { limit } = intervention;
        // Recorded before it is sent, too, because the new limit may count for a grant in the
        // meantime.
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
      // A fault may have lost the reply: when the request was repeated, nobody held the name any
      // more.
      if (!mayAct()) this.#mayHaveDone(name, sinceMs);
    } catch {
      this.#mayHaveDone(name, sinceMs);
    }
  }

  /**
   * Records that an intervention may have taken effect, or may do so later. For the checks, this is
   * a store that may have lost grants of this name.
   */
  #mayHaveDone(name: string, sinceMs: number): void {
    const rules = [...EXCLUSION, "S6", "L1", "L2"] as const;
    const toMs = machineMs() + LATER_MS;
    this.excuses.push({ rules, fromMs: sinceMs, toMs, name });
    const fault = `an intervention on ${JSON.stringify(name)} without a reply`;
    this.#timeLine.add({ kind: "injected", fault, atMs: sinceMs, name });
    this.#timeLine.add({ kind: "healed", fault, atMs: toMs });
  }
}
