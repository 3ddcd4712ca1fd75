import type { StoryRow } from "./data.js";
import type { Hold, Operation, Scene, Trouble } from "./scene.js";
import type { View } from "./view.js";

export type By = "worker" | "name";

export interface Lane {
  readonly label: string;
  readonly topPx: number;
  readonly heightPx: number;
  /** The top of the first bar. */
  readonly barTopPx: number;
  readonly barPx: number;
}

export interface Row {
  readonly topPx: number;
  readonly heightPx: number;
}

/** A numbered event of a story. `stemX` is the moment itself. */
export interface Mark {
  readonly number: number;
  readonly x: number;
  readonly y: number;
  readonly stemX: number;
  readonly atMs: number;
  readonly text: string;
}

interface Packed<T> {
  readonly rowOf: ReadonlyMap<T, number>;
  /** The number of rows of each lane. */
  readonly rows: readonly number[];
}

/** The layout from top to bottom: the strip of the store's faults, then a lane for each worker or name. */
export class Lanes {
  readonly axisPx = 26;
  readonly faultPx = 18;
  readonly labelPx = 15;
  readonly holdPx = 15;
  /** The height of a lane that many concurrent bars share. */
  readonly holdsPx = 44;
  readonly waitPx = 4;
  readonly padPx = 7;
  readonly mostRows = 8;
  readonly mostLanes = 60;

  readonly by: By;
  readonly lanes: readonly Lane[];
  readonly stripHeightPx: number;
  readonly heightPx: number;
  readonly #holds: Packed<Hold>;
  readonly #waits: Packed<Operation>;
  readonly #faults: Packed<Trouble>;

  constructor(scene: Scene, by: By) {
    this.by = by;
    const labels = (by === "worker" ? scene.data.workers : scene.data.names).slice(
      0,
      this.mostLanes,
    );
    this.#holds = this.#pack(scene.holds, labels.length, (one) => this.laneOf(one.operation));
    this.#waits = this.#pack(
      scene.operations.map((operation) => ({
        operation,
        fromMs: operation.askedAtMs,
        toMs: operation.waitedUntilMs,
      })),
      labels.length,
      (one) => this.laneOf(one.operation),
      (one) => one.operation,
    );
    const ofStore = scene.faults.filter(({ worker }) => worker === -1);
    this.#faults = this.#pack(ofStore, 1, () => 0);
    const strips = this.#faults.rows[0]!;
    this.stripHeightPx = ofStore.length === 0 ? 0 : strips * this.faultPx + 6;
    let topPx = this.axisPx + this.stripHeightPx;
    this.lanes = labels.map((label, i) => {
      const rows = this.#holds.rows[i]!;
      const barPx = Math.min(this.holdPx, Math.floor(this.holdsPx / rows));
      const barTopPx = topPx + this.labelPx;
      const waitsPx = this.#waits.rows[i]! * this.waitPx;
      const heightPx = this.labelPx + rows * (barPx + 1) + waitsPx + this.padPx;
      const lane = { label, topPx, heightPx, barTopPx, barPx };
      topPx += heightPx;
      return lane;
    });
    this.heightPx = topPx + 1;
  }

  /** Puts each span into the first row of its lane that is free. Spans beyond the last row share it. */
  #pack<T extends { fromMs: number; toMs: number }, K = T>(
    inOrder: readonly T[],
    lanes: number,
    laneOf: (one: T) => number,
    keyOf: (one: T) => K = (one) => one as unknown as K,
  ): Packed<K> {
    const ends: number[][] = Array.from({ length: lanes }, () => []);
    const rowOf = new Map<K, number>();
    for (const one of inOrder) {
      const rows = ends[laneOf(one)];
      if (rows === undefined) continue;
      const free = rows.findIndex((endMs) => endMs <= one.fromMs);
      const row = free === -1 ? Math.min(rows.length, this.mostRows - 1) : free;
      rows[row] = Math.max(one.toMs, rows[row] ?? 0);
      rowOf.set(keyOf(one), row);
    }
    return { rowOf, rows: ends.map((rows) => Math.max(1, rows.length)) };
  }

  laneOf({ worker, name }: { worker: number; name: number }): number {
    return this.by === "worker" ? worker : name;
  }

  hold(hold: Hold): Row | null {
    const lane = this.lanes[this.laneOf(hold.operation)];
    if (lane === undefined) return null;
    const row = this.#holds.rowOf.get(hold) ?? 0;
    return { topPx: lane.barTopPx + row * (lane.barPx + 1), heightPx: lane.barPx };
  }

  wait(operation: Operation): Row | null {
    const index = this.laneOf(operation);
    const lane = this.lanes[index];
    if (lane === undefined) return null;
    const row = this.#waits.rowOf.get(operation) ?? 0;
    const holdsPx = this.#holds.rows[index]! * (lane.barPx + 1);
    return { topPx: lane.barTopPx + holdsPx + 2 + row * this.waitPx, heightPx: 2 };
  }

  /** The position of a fault of the store on the strip. */
  strip(fault: Trouble): Row {
    const row = this.#faults.rowOf.get(fault) ?? 0;
    return { topPx: this.axisPx + 2 + row * this.faultPx, heightPx: this.faultPx - 3 };
  }

  /** The lane of a sign or of numbered evidence, if it has one. */
  lane(one: { worker: number; name: number }): Lane | null {
    return this.lanes[this.laneOf(one)] ?? null;
  }

  /** The positions of the numbers of the evidence. Numbers that would cover each other stand side by side. */
  marks({ marks }: StoryRow, view: View): readonly Mark[] {
    const takenPx = new Map<number, number>();
    return marks.flatMap(([atMs, worker, name, text], i) => {
      if (!view.shows(atMs, atMs)) return [];
      const y = (this.lane({ worker, name })?.topPx ?? 4) + 8;
      const x = Math.max(view.x(atMs), (takenPx.get(y) ?? Number.NEGATIVE_INFINITY) + 16);
      takenPx.set(y, x);
      return [{ number: i + 1, x, y, stemX: view.x(atMs), atMs, text }];
    });
  }

  /** The row of a pause or fault of a worker; null in the view by names. */
  trouble(trouble: Trouble): Row | null {
    return this.by === "worker" ? (this.lanes[trouble.worker] ?? null) : null;
  }
}
