import type { PageData, StoryRow } from "./data.js";

export interface Hold {
  readonly operation: Operation;
  readonly fromMs: number;
  readonly toMs: number;
}

export interface Operation {
  readonly worker: number;
  readonly name: number;
  readonly mode: string;
  readonly askedAtMs: number;
  readonly waitedUntilMs: number;
  readonly op: string;
  readonly outcome: string;
  readonly token: string;
  readonly ending: string;
  readonly holds: Hold[];
}

/** A moment of one worker or operation that has a sign of its own on the time line. */
export interface Sign {
  readonly kind: "kill" | "loss" | "refusal";
  readonly atMs: number;
  readonly worker: number;
  /** -1 for a kill. */
  readonly name: number;
  readonly operation: Operation | null;
  readonly text: string;
}

/** An interval in which a worker was paused, or a fault was active. `worker` is -1 for the store. */
export interface Trouble {
  readonly kind: "pause" | "fault";
  readonly worker: number;
  readonly fromMs: number;
  readonly toMs: number;
  readonly text: string;
}

/** The data of the page, as objects. */
export class Scene {
  readonly data: PageData;
  readonly operations: readonly Operation[];
  /** Holds in the order of their start. */
  readonly holds: readonly Hold[];
  readonly signs: readonly Sign[];
  readonly pauses: readonly Trouble[];
  readonly faults: readonly Trouble[];
  /** The story whose evidence is numbered. */
  story: StoryRow | null;

  constructor(data: PageData) {
    this.data = data;
    this.operations = data.operations.map((row) => this.#operation(row));
    this.holds = this.operations.flatMap(({ holds }) => holds).sort((a, b) => a.fromMs - b.fromMs);
    this.signs = [
      ...data.losses.map(([i, atMs, reason]) =>
        this.#sign("loss", i, atMs, `lease lost: ${reason}`),
      ),
      ...data.refusals.map(([i, atMs, what]) => this.#sign("refusal", i, atMs, what)),
      ...data.kills.map(([worker, atMs]): Sign => {
        const text = `${data.workers[worker] ?? "worker"} killed`;
        return { kind: "kill", atMs, worker, name: -1, operation: null, text };
      }),
    ];
    this.pauses = data.pauses.map(([worker, fromMs, toMs, frozen]) => ({
      kind: "pause",
      worker,
      fromMs,
      toMs,
      text: frozen === 1 ? "frozen, its clocks too" : "paused",
    }));
    this.faults = data.faults.map(([worker, fromMs, toMs, text]) => ({
      kind: "fault",
      worker,
      fromMs,
      toMs,
      text,
    }));
    this.story = data.stories.find(({ violated }) => violated) ?? data.stories[0] ?? null;
  }

  #operation(row: PageData["operations"][number]): Operation {
    const [worker, name, mode, askedAtMs, waitedUntilMs, op, outcome, token, ending, ...ends] = row;
    const operation: Operation = {
      ...{ worker, name, mode, askedAtMs, waitedUntilMs, op, outcome, token, ending },
      holds: [],
    };
    for (let i = 0; i + 1 < ends.length; i += 2) {
      operation.holds.push({ operation, fromMs: ends[i]!, toMs: ends[i + 1]! });
    }
    return operation;
  }

  #sign(kind: "loss" | "refusal", index: number, atMs: number, text: string): Sign {
    const operation = this.operations[index]!;
    return { kind, atMs, worker: operation.worker, name: operation.name, operation, text };
  }
}
