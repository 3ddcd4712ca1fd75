/// <reference lib="dom" />
import type { Picture } from "./painter.js";
import type { Operation } from "./scene.js";

/** The description of one place on the time line. */
export interface Description {
  readonly title: string;
  readonly lines: readonly string[];
  readonly operation: Operation | null;
}

/** Finds the item under the pointer, and describes it in words. */
export class Details {
  readonly #nearPx = 8;
  readonly #picture: Picture;

  constructor(picture: Picture) {
    this.#picture = picture;
  }

  find(x: number, y: number): Description | null {
    return (
      this.#findEvidence(x, y) ??
      this.#findSign(x, y) ??
      this.#findOperation(x, y) ??
      this.#findTrouble(x, y)
    );
  }

  #findEvidence(x: number, y: number): Description | null {
    const { scene, view, lanes } = this.#picture;
    const { story } = scene;
    if (story === null) return null;
    const mark = lanes
      .marks(story, view)
      .find((one) => Math.hypot(one.x - x, one.y - y) < this.#nearPx);
    if (mark === undefined) return null;
    const title = `${story.check}, evidence ${mark.number}`;
    return { title, lines: [this.time(mark.atMs), mark.text], operation: null };
  }

  #findSign(x: number, y: number): Description | null {
    const { scene, view, lanes } = this.#picture;
    const sign = scene.signs.find((one) => {
      const lane = lanes.lane(one);
      if (lane === null || Math.abs(view.x(one.atMs) - x) > 5) return false;
      return y >= lane.barTopPx - 7 && y <= lane.barTopPx + lane.barPx;
    });
    if (sign === undefined) return null;
    const { operation, text, atMs } = sign;
    const title = operation === null ? text : this.#titleOf(operation);
    const what = operation === null ? [] : [text];
    return { title, lines: [this.time(atMs), ...what], operation };
  }

  #findOperation(x: number, y: number): Description | null {
    const { scene, view, lanes } = this.#picture;
    const isAt = (row: { topPx: number; heightPx: number } | null, slackPx: number): boolean =>
      row !== null && y >= row.topPx - slackPx && y <= row.topPx + row.heightPx + slackPx;
    const distance = (fromMs: number, toMs: number): number =>
      Math.max(0, view.x(fromMs) - x, x - view.x(toMs));
    let nearest: Operation | null = null;
    let nearestPx = 4;
    for (const hold of scene.holds) {
      const away = distance(hold.fromMs, hold.toMs);
      if (away < nearestPx && isAt(lanes.hold(hold), 0)) {
        nearest = hold.operation;
        nearestPx = away;
      }
    }
    if (nearest === null) {
      nearest =
        scene.operations.find(
          (one) => distance(one.askedAtMs, one.waitedUntilMs) < 1 && isAt(lanes.wait(one), 1),
        ) ?? null;
    }
    return nearest === null ? null : this.ofOperation(nearest);
  }

  #findTrouble(x: number, y: number): Description | null {
    const { scene, view, lanes } = this.#picture;
    const atMs = view.at(x);
    const slackMs = 3 * view.msPerPx;
    const found = [...scene.pauses, ...scene.faults].filter((one) => {
      const row = one.worker === -1 ? lanes.strip(one) : lanes.trouble(one);
      if (row === null || y < row.topPx || y > row.topPx + row.heightPx) return false;
      return one.fromMs - slackMs <= atMs && one.toMs + slackMs >= atMs;
    });
    if (found.length === 0 || x < view.leftPx) return null;
    const worker = scene.data.workers[found[0]!.worker];
    const lines = found.map(
      ({ text, fromMs, toMs }) =>
        `${text}: ${this.time(fromMs)}, for ${this.duration(toMs - fromMs)}`,
    );
    return { title: worker ?? "Fault of the store", lines, operation: null };
  }

  #titleOf({ worker, name }: Operation): string {
    const { data } = this.#picture.scene;
    return `${data.workers[worker]} · ${data.names[name]}`;
  }

  ofOperation(one: Operation): Description {
    const mode = one.mode === "" ? "exclusive" : one.mode;
    const waited = this.duration(one.waitedUntilMs - one.askedAtMs);
    const lines = [`requested at ${this.time(one.askedAtMs)}, waited ${waited}`];
    if (one.holds.length === 0) lines.push(`${mode}; not granted: ${one.outcome}`);
    else lines.push(`${mode}; token ${one.token}`);
    for (const { fromMs, toMs } of one.holds) {
      lines.push(`held from ${this.time(fromMs)}, for ${this.duration(toMs - fromMs)}`);
    }
    if (one.ending !== "") lines.push(`end: ${one.ending}`);
    lines.push(`operation ${one.op}`);
    return { title: this.#titleOf(one), lines, operation: one };
  }

  time(atMs: number): string {
    return `${atMs < 0 ? "−" : "+"}${(Math.abs(atMs) / 1_000).toFixed(3)} s`;
  }

  duration(ms: number): string {
    if (ms < 10) return `${Number(ms.toFixed(2))} ms`;
    return ms < 1_000 ? `${Math.round(ms)} ms` : `${Number((ms / 1_000).toFixed(2))} s`;
  }

  /** The middle of an operation on the canvas, for details that were opened by the keyboard. */
  middle(one: Operation): { x: number; y: number } {
    const { view, lanes } = this.#picture;
    const hold = one.holds[0];
    const row = hold === undefined ? lanes.wait(one) : lanes.hold(hold);
    const atMs = hold === undefined ? one.askedAtMs : hold.fromMs;
    return { x: view.x(atMs), y: (row?.topPx ?? 0) + (row?.heightPx ?? 0) };
  }
}
