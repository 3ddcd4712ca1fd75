/// <reference lib="dom" />
import type { Lanes, Row } from "./lanes.js";
import type { Hold, Operation, Scene, Sign, Trouble } from "./scene.js";
import type { Theme } from "./theme.js";
import type { View } from "./view.js";

/** The input of a painter. The time line replaces parts of it when the reader zooms or switches. */
export interface Picture {
  readonly scene: Scene;
  readonly view: View;
  readonly lanes: Lanes;
  readonly theme: Theme;
  /** The operation under the pointer or the keyboard. */
  readonly chosen: Operation | null;
  /** Narrow screens have the labels of lanes above the bars, not beside them. */
  readonly labelsAbove: boolean;
}

/** Draws the lanes. It draws only the part in view, so a frame takes a few milliseconds. */
export class Painter {
  readonly #context: CanvasRenderingContext2D;
  #picture!: Picture;
  #hatch: CanvasPattern | null = null;
  #hatchInk = "";

  constructor(context: CanvasRenderingContext2D) {
    this.#context = context;
  }

  paint(picture: Picture, widthPx: number): void {
    this.#picture = picture;
    const { lanes, view } = picture;
    const c = this.#context;
    c.clearRect(0, 0, widthPx, lanes.heightPx);
    this.#paintAxis();
    c.save();
    c.beginPath();
    // Widened, so that a sign at either end is drawn in full.
    c.rect(view.leftPx - 8, 0, view.widthPx + 16, lanes.heightPx);
    c.clip();
    this.#paintFaults();
    this.#paintRuns();
    this.#paintWaits();
    this.#paintHolds();
    this.#paintPauses();
    this.#paintWrong();
    for (const sign of picture.scene.signs) this.#paintSign(sign);
    this.#paintEvidence();
    c.restore();
    this.#paintLabels(widthPx);
  }

  #font(px: number, weight = 400): void {
    this.#context.font = `${weight} ${px}px ${this.#picture.theme.font}`;
  }

  #paintAxis(): void {
    const { view, lanes, theme } = this.#picture;
    const c = this.#context;
    this.#font(11);
    c.textBaseline = "middle";
    c.textAlign = "center";
    for (const { atMs, label } of view.ticks(view.widthPx < 500 ? 80 : 110)) {
      const x = Math.round(view.x(atMs)) + 0.5;
      c.strokeStyle = theme.line;
      c.beginPath();
      c.moveTo(x, 20);
      c.lineTo(x, lanes.heightPx);
      c.stroke();
      const half = c.measureText(label).width / 2;
      const inside = Math.min(view.leftPx + view.widthPx - half, Math.max(view.leftPx + half, x));
      c.fillStyle = theme.muted;
      c.fillText(label, inside, 10);
    }
  }

  /** The rectangle of an interval: at least `leastPx` wide, so that it does not vanish when zoomed out. */
  #box(span: { fromMs: number; toMs: number }, leastPx: number): { x: number; width: number } {
    const { view } = this.#picture;
    const from = Math.max(view.leftPx, view.x(span.fromMs));
    const to = Math.min(view.leftPx + view.widthPx, view.x(span.toMs));
    return { x: from, width: Math.max(leastPx, to - from) };
  }

  #paintFaults(): void {
    const { scene, view, lanes, theme } = this.#picture;
    const c = this.#context;
    const ofStore: Trouble[] = [];
    for (const fault of scene.faults) {
      if (!view.shows(fault.fromMs, fault.toMs)) continue;
      const { x, width } = this.#box(fault, 1.5);
      c.fillStyle = theme.fault;
      if (fault.worker === -1) {
        ofStore.push(fault);
        const strip = lanes.strip(fault);
        c.globalAlpha = 0.1;
        c.fillRect(x, strip.topPx, width, lanes.heightPx - strip.topPx);
        c.globalAlpha = 0.5;
        c.fillRect(x, strip.topPx, width, strip.heightPx);
        continue;
      }
      const lane = lanes.trouble(fault);
      if (lane === null) continue;
      c.globalAlpha = 0.2;
      c.fillRect(x, lane.topPx + 1, width, lane.heightPx - 1);
      c.globalAlpha = 0.9;
      c.fillRect(x, lane.topPx + 1, width, 2);
      this.#paintFaultName(fault, lane, x, width);
    }
    c.globalAlpha = 1;
    this.#paintStripNames(ofStore);
  }

  #paintFaultName(fault: Trouble, lane: Row, x: number, width: number): void {
    const { view, theme, labelsAbove } = this.#picture;
    const c = this.#context;
    if (labelsAbove || width < 70) return;
    this.#font(10);
    c.globalAlpha = 1;
    c.textAlign = "left";
    c.fillStyle = theme.faultInk;
    const from = Math.max(view.leftPx, x) + 4;
    const text = this.#fit(fault.text, x + width - from - 4);
    c.fillText(text, from, lane.topPx + 9);
  }

  /** Paints names beside the bars of the strip, as far as the next bar of the same row leaves room. */
  #paintStripNames(faults: readonly Trouble[]): void {
    const { view, lanes, theme } = this.#picture;
    const c = this.#context;
    this.#font(10.5, 500);
    c.textAlign = "left";
    c.fillStyle = theme.faultInk;
    for (const [i, fault] of faults.entries()) {
      const { topPx, heightPx } = lanes.strip(fault);
      const next = faults.slice(i + 1).find((one) => lanes.strip(one).topPx === topPx);
      const x = Math.max(view.leftPx, view.x(fault.fromMs)) + 4;
      const endPx = next === undefined ? view.leftPx + view.widthPx : view.x(next.fromMs);
      const text = this.#fit(fault.text, endPx - x - 4);
      c.fillText(text, x, topPx + heightPx / 2 + 0.5);
    }
  }

  /** The text, shortened to the room that there is; "" where only a few letters would be left. */
  #fit(text: string, widthPx: number): string {
    const c = this.#context;
    if (widthPx < 20) return "";
    if (c.measureText(text).width <= widthPx) return text;
    let length = Math.floor((text.length * widthPx) / c.measureText(text).width);
    while (length > 0 && c.measureText(`${text.slice(0, length)}…`).width > widthPx) length--;
    return length < 4 ? "" : `${text.slice(0, length)}…`;
  }

  #paintRuns(): void {
    const { scene, view, lanes, theme } = this.#picture;
    const c = this.#context;
    if (scene.data.runs.length < 2) return;
    this.#font(10);
    c.textAlign = "left";
    for (const [atMs, seed] of scene.data.runs) {
      if (!view.shows(atMs, atMs)) continue;
      const x = Math.round(view.x(atMs)) + 0.5;
      c.strokeStyle = theme.muted;
      c.beginPath();
      c.moveTo(x, 18);
      c.lineTo(x, lanes.heightPx);
      c.stroke();
      const label = `seed ${seed}`;
      const width = c.measureText(label).width;
      c.fillStyle = theme.panel;
      c.fillRect(x + 1, 17, width + 5, 10);
      c.fillStyle = theme.muted;
      c.fillText(label, x + 3, 22);
    }
  }

  #paintWaits(): void {
    const { scene, view, lanes, theme, chosen } = this.#picture;
    const c = this.#context;
    for (const operation of scene.operations) {
      const { askedAtMs, waitedUntilMs, outcome } = operation;
      if (!view.shows(askedAtMs, waitedUntilMs)) continue;
      const row = lanes.wait(operation);
      if (row === null) continue;
      const { x, width } = this.#box({ fromMs: askedAtMs, toMs: waitedUntilMs }, 0.5);
      c.fillStyle = theme.bar(this.#colourOf(operation));
      c.globalAlpha = operation === chosen ? 1 : 0.55;
      c.fillRect(x, row.topPx, width, operation === chosen ? 3 : row.heightPx);
      if (outcome === "" || view.msPerPx > 40) continue;
      c.fillStyle = theme.muted;
      c.globalAlpha = 1;
      c.fillRect(x + width - 1, row.topPx - 2, 1.5, row.heightPx + 4);
    }
    c.globalAlpha = 1;
  }

  #colourOf({ worker, name }: Operation): number {
    return this.#picture.lanes.by === "worker" ? name : worker;
  }

  #paintHolds(): void {
    const { scene, view, lanes, theme, chosen } = this.#picture;
    const c = this.#context;
    for (const hold of scene.holds) {
      if (!view.shows(hold.fromMs, hold.toMs)) continue;
      const row = lanes.hold(hold);
      if (row === null) continue;
      const { operation } = hold;
      const { x, width } = this.#box(hold, 0.8);
      const isExclusive = operation.mode === "";
      c.fillStyle = theme.bar(this.#colourOf(operation));
      c.globalAlpha = isExclusive ? 1 : 0.4;
      c.fillRect(x, row.topPx, width, row.heightPx);
      c.globalAlpha = 1;
      if (width > 4) {
        // A gap of one pixel separates two leases that follow each other at once.
        c.fillStyle = theme.panel;
        c.fillRect(x + width - 0.75, row.topPx, 0.75, row.heightPx);
      }
      if (operation === chosen) {
        c.strokeStyle = theme.ink;
        c.lineWidth = 1.5;
        c.strokeRect(x, row.topPx - 0.5, width, row.heightPx + 1);
        c.lineWidth = 1;
      }
      if (width > 26 && row.heightPx > 11) this.#paintToken(hold, row, x, width);
    }
  }

  #paintToken({ operation }: Hold, row: Row, x: number, width: number): void {
    const { scene, view, lanes, theme } = this.#picture;
    const c = this.#context;
    const { workers, names } = scene.data;
    const whom = lanes.by === "worker" ? names[operation.name] : workers[operation.worker];
    const from = Math.max(view.leftPx, x);
    const roomPx = Math.min(x + width, view.leftPx + view.widthPx) - from - 8;
    this.#font(10.5, 500);
    c.textAlign = "left";
    c.fillStyle = operation.mode === "" ? theme.onBar : theme.ink;
    const short = operation.token;
    const text = [`${whom} · ${short}`, short].find((one) => c.measureText(one).width <= roomPx);
    if (text !== undefined) c.fillText(text, from + 4, row.topPx + row.heightPx / 2 + 0.5);
  }

  #paintPauses(): void {
    const { scene, view, lanes } = this.#picture;
    const c = this.#context;
    for (const pause of scene.pauses) {
      if (!view.shows(pause.fromMs, pause.toMs)) continue;
      c.fillStyle = this.#hatchOf();
      const lane = lanes.trouble(pause);
      if (lane !== null) {
        const { x, width } = this.#box(pause, 2);
        c.fillRect(x, lane.topPx + 3, width, lane.heightPx - 4);
        continue;
      }
      // In lanes of names, only the bars of the paused worker are hatched.
      for (const hold of scene.holds) {
        const fromMs = Math.max(hold.fromMs, pause.fromMs);
        const toMs = Math.min(hold.toMs, pause.toMs);
        const row = hold.operation.worker === pause.worker && fromMs < toMs && lanes.hold(hold);
        if (!row) continue;
        const { x, width } = this.#box({ fromMs, toMs }, 1);
        c.fillRect(x, row.topPx, width, row.heightPx);
      }
    }
  }

  #hatchOf(): CanvasPattern | string {
    const { ink } = this.#picture.theme;
    if (this.#hatch !== null && this.#hatchInk === ink) return this.#hatch;
    const tile = document.createElement("canvas");
    tile.width = 6;
    tile.height = 6;
    const c = tile.getContext("2d")!;
    c.strokeStyle = ink;
    c.globalAlpha = 0.55;
    c.beginPath();
    for (const shift of [-6, 0, 6]) {
      c.moveTo(shift - 1, 7);
      c.lineTo(shift + 7, -1);
    }
    c.stroke();
    this.#hatchInk = ink;
    this.#hatch = this.#context.createPattern(tile, "repeat");
    return this.#hatch ?? ink;
  }

  #paintWrong(): void {
    const { scene, view, lanes, theme } = this.#picture;
    const { story } = scene;
    if (story === null || story.wrong === null) return;
    const [fromMs, toMs] = story.wrong;
    if (!view.shows(fromMs, toMs)) return;
    const { x, width } = this.#box({ fromMs, toMs }, 2);
    const c = this.#context;
    c.fillStyle = story.violated ? theme.bad : theme.fault;
    c.globalAlpha = 0.16;
    c.fillRect(x, 20, width, lanes.heightPx - 20);
    c.globalAlpha = 0.8;
    c.fillRect(x, 20, width, 2);
    c.globalAlpha = 1;
  }

  #paintSign(sign: Sign): void {
    const { view, lanes, theme } = this.#picture;
    if (!view.shows(sign.atMs, sign.atMs)) return;
    const lane = lanes.lane(sign);
    if (lane === null) return;
    const c = this.#context;
    const x = view.x(sign.atMs);
    const y = lane.barTopPx + lane.barPx / 2;
    const r = 4.5;
    const path = new Path2D();
    if (sign.kind === "kill") {
      path.moveTo(x - r, y - r);
      path.lineTo(x + r, y + r);
      path.moveTo(x + r, y - r);
      path.lineTo(x - r, y + r);
    } else if (sign.kind === "loss") {
      path.moveTo(x - 4, lane.barTopPx - 6);
      path.lineTo(x + 4, lane.barTopPx - 6);
      path.lineTo(x, lane.barTopPx);
      path.closePath();
    } else {
      path.arc(x, y, r, 0, 7);
      path.moveTo(x - 3, y + 3);
      path.lineTo(x + 3, y - 3);
    }
    c.lineCap = "round";
    c.strokeStyle = theme.panel;
    c.lineWidth = 4.5;
    c.stroke(path);
    c.fillStyle = sign.kind === "loss" ? theme.ink : theme.panel;
    if (sign.kind !== "kill") c.fill(path);
    c.strokeStyle = theme.ink;
    c.lineWidth = sign.kind === "kill" ? 2.25 : 1.5;
    c.stroke(path);
    c.lineWidth = 1;
  }

  #paintEvidence(): void {
    const { scene, view, lanes, theme } = this.#picture;
    const { story } = scene;
    if (story === null) return;
    const c = this.#context;
    const marks = lanes.marks(story, view);
    const tone = story.violated ? theme.bad : theme.faultInk;
    c.strokeStyle = tone;
    c.beginPath();
    for (const { stemX, y } of marks) {
      c.moveTo(stemX, y);
      c.lineTo(stemX, y + 23);
    }
    c.stroke();
    this.#font(10, 650);
    c.textAlign = "center";
    for (const { number, x, y } of marks) {
      c.fillStyle = theme.panel;
      c.beginPath();
      c.arc(x, y, 8.5, 0, 7);
      c.fill();
      c.fillStyle = tone;
      c.beginPath();
      c.arc(x, y, 7.5, 0, 7);
      c.fill();
      c.fillStyle = theme.panel;
      c.fillText(String(number), x, y + 0.5);
    }
  }

  #paintLabels(widthPx: number): void {
    const { scene, view, lanes, theme, labelsAbove } = this.#picture;
    const c = this.#context;
    c.textAlign = "left";
    for (const [i, lane] of lanes.lanes.entries()) {
      c.fillStyle = theme.line;
      c.fillRect(0, lane.topPx, widthPx, 1);
      const y = labelsAbove ? lane.topPx + 9 : lane.barTopPx + 8;
      const x = labelsAbove ? 6 : 14;
      this.#font(labelsAbove ? 10.5 : 12, 550);
      c.fillStyle = theme.ink;
      c.fillText(this.#fit(lane.label, labelsAbove ? 160 : view.leftPx - x - 6), x, y);
      if (i === 0 && lanes.stripHeightPx > 0 && !labelsAbove) {
        c.fillStyle = theme.muted;
        c.fillText(
          this.#fit("store", view.leftPx - x - 6),
          x,
          lanes.axisPx + lanes.stripHeightPx / 2 - 2,
        );
      }
    }
    const left =
      (lanes.by === "worker" ? scene.data.workers : scene.data.names).length - lanes.lanes.length;
    if (left > 0) c.fillText(`and ${left} more`, view.leftPx + 4, lanes.heightPx - 6);
  }
}
