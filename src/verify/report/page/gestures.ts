/// <reference lib="dom" />

/** The reader's actions on the time lines. Positions are in pixels of the canvas. */
export interface Actions {
  zoom(factor: number, x: number): void;
  panPx(byPx: number): void;
  showAll(): void;
  /** The pointer rests here, or a finger has tapped here. */
  point(x: number, y: number): void;
  leave(): void;
  /** Chooses the next or the previous operation. */
  step(by: 1 | -1): void;
}

/** Turns wheel, pointers and keys into actions. A plain wheel scrolls the page. */
export class Gestures {
  readonly #keyZoom = 1.5;
  readonly #target: HTMLElement;
  readonly #actions: Actions;
  /** The pointers that are pressed. */
  readonly #down = new Map<number, { x: number; y: number }>();
  #movedPx = 0;

  constructor(target: HTMLElement, actions: Actions) {
    this.#target = target;
    this.#actions = actions;
    target.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    target.addEventListener("pointerdown", (event) => this.#press(event));
    target.addEventListener("pointermove", (event) => this.#move(event));
    target.addEventListener("pointerup", (event) => this.#lift(event));
    target.addEventListener("pointercancel", (event) => this.#down.delete(event.pointerId));
    target.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && this.#down.size === 0) actions.leave();
    });
    target.addEventListener("keydown", (event) => this.#key(event));
    target.addEventListener("blur", () => actions.leave());
  }

  #place(event: MouseEvent): { x: number; y: number } {
    const { left, top } = this.#target.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  #wheel(event: WheelEvent): void {
    const { x } = this.#place(event);
    const unit = event.deltaMode === 0 ? 1 : 16;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.#actions.zoom(Math.exp((-event.deltaY * unit) / 240), x);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.#actions.panPx((event.deltaX || event.deltaY) * unit);
    }
  }

  #press(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.#target.setPointerCapture(event.pointerId);
    if (this.#down.size === 0) this.#movedPx = 0;
    this.#down.set(event.pointerId, this.#place(event));
  }

  #move(event: PointerEvent): void {
    const now = this.#place(event);
    const before = this.#down.get(event.pointerId);
    if (before === undefined) {
      if (event.pointerType === "mouse") this.#actions.point(now.x, now.y);
      return;
    }
    const other = [...this.#down].find(([id]) => id !== event.pointerId)?.[1];
    this.#down.set(event.pointerId, now);
    this.#movedPx += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    if (other === undefined) {
      if (this.#movedPx > 3) this.#actions.panPx(before.x - now.x);
      return;
    }
    const apart = (one: { x: number }): number => Math.max(12, Math.abs(one.x - other.x));
    this.#actions.zoom(apart(now) / apart(before), (now.x + other.x) / 2);
    this.#actions.panPx((before.x - now.x) / 2);
  }

  #lift(event: PointerEvent): void {
    this.#down.delete(event.pointerId);
    const { x, y } = this.#place(event);
    if (this.#movedPx <= 3) this.#actions.point(x, y);
  }

  #key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const width = this.#target.clientWidth;
    const keys: Record<string, () => void> = {
      "+": () => this.#actions.zoom(this.#keyZoom, width / 2),
      "=": () => this.#actions.zoom(this.#keyZoom, width / 2),
      "-": () => this.#actions.zoom(1 / this.#keyZoom, width / 2),
      "0": () => this.#actions.showAll(),
      ArrowLeft: () => this.#actions.panPx(-width / 6),
      ArrowRight: () => this.#actions.panPx(width / 6),
      ArrowUp: () => this.#actions.step(-1),
      ArrowDown: () => this.#actions.step(1),
      Escape: () => this.#actions.leave(),
    };
    const act = keys[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
  }
}
