/// <reference lib="dom" />
import type { Picture } from "./painter.js";

/**
 * The whole run in one small strip, with a frame around the part that the time lines show. Dragging
 * moves that part.
 */
export class Minimap {
  readonly #heightPx = 52;
  readonly #canvas: HTMLCanvasElement;
  /** Everything but the frame: drawn once, because it changes only with size, theme and lanes. */
  readonly #base = document.createElement("canvas");
  #basedOn: readonly unknown[] = [];

  constructor(canvas: HTMLCanvasElement, onMove: (x: number) => void) {
    this.#canvas = canvas;
    const move = (event: PointerEvent): void => {
      onMove(event.clientX - canvas.getBoundingClientRect().left);
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (canvas.hasPointerCapture(event.pointerId)) move(event);
    });
  }

  paint(picture: Picture): void {
    const { view, theme } = picture;
    const widthPx = this.#canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    const heightPx = this.#heightPx;
    const key = [widthPx, view.leftPx, ratio, theme, picture.lanes, picture.scene.story];
    if (key.some((one, i) => one !== this.#basedOn[i])) {
      for (const canvas of [this.#canvas, this.#base]) {
        canvas.width = Math.round(widthPx * ratio);
        canvas.height = Math.round(heightPx * ratio);
      }
      this.#paintBase(picture, widthPx, ratio);
      this.#basedOn = key;
    }
    const c = this.#canvas.getContext("2d")!;
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    c.drawImage(this.#base, 0, 0);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    const allMs = view.lastMs - view.firstMs;
    const from = view.leftPx + ((view.fromMs - view.firstMs) / allMs) * view.widthPx;
    const width = Math.max(5, ((view.toMs - view.fromMs) / allMs) * view.widthPx);
    if (width >= view.widthPx - 0.5) return;
    c.fillStyle = theme.panel;
    c.globalAlpha = 0.66;
    c.fillRect(0, 0, from, heightPx);
    c.fillRect(from + width, 0, widthPx - from - width, heightPx);
    c.globalAlpha = 1;
    c.strokeStyle = theme.ink;
    c.lineWidth = 1.5;
    c.beginPath();
    c.roundRect(from, 3.5, width, heightPx - 7, 3);
    c.stroke();
  }

  #paintBase({ scene, view, lanes, theme }: Picture, widthPx: number, ratio: number): void {
    const c = this.#base.getContext("2d")!;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, widthPx, this.#heightPx);
    const x = (atMs: number): number =>
      view.leftPx + ((atMs - view.firstMs) / (view.lastMs - view.firstMs)) * view.widthPx;
    const rowPx = (this.#heightPx - 16) / Math.max(1, lanes.lanes.length);
    const box = (fromMs: number, toMs: number, top: number, height: number): void =>
      c.fillRect(x(fromMs), top, Math.max(0.5, x(toMs) - x(fromMs)), height);
    c.fillStyle = theme.fault;
    for (const { worker, fromMs, toMs } of scene.faults) {
      c.globalAlpha = worker === -1 ? 0.28 : 0.35;
      if (worker === -1) box(fromMs, toMs, 0, this.#heightPx);
      else if (lanes.by === "worker") box(fromMs, toMs, 8 + worker * rowPx, rowPx);
    }
    for (const { operation, fromMs, toMs } of scene.holds) {
      const lane = lanes.laneOf(operation);
      if (lane >= lanes.lanes.length) continue;
      c.fillStyle = theme.bar(lanes.by === "worker" ? operation.name : operation.worker);
      c.globalAlpha = operation.mode === "" ? 0.85 : 0.35;
      box(fromMs, toMs, 8 + lane * rowPx, Math.max(1, rowPx - 1));
    }
    c.globalAlpha = 1;
    for (const story of scene.data.stories) {
      const atMs = story.marks.at(-1)?.[0] ?? story.fromMs;
      c.fillStyle = story.violated ? theme.bad : theme.faultInk;
      c.fillRect(x(atMs) - 0.75, 0, 1.5, this.#heightPx);
      c.beginPath();
      c.arc(x(atMs), 4.5, 3.5, 0, 7);
      c.fill();
    }
  }
}
