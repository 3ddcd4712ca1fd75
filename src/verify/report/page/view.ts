/** The part of the time line that is shown, and its scale in pixels. */
export class View {
  readonly shortestMs = 1;
  readonly firstMs: number;
  readonly lastMs: number;
  fromMs: number;
  toMs: number;
  leftPx = 0;
  widthPx = 1;

  constructor(firstMs: number, lastMs: number) {
    this.firstMs = firstMs;
    this.lastMs = lastMs;
    this.fromMs = firstMs;
    this.toMs = lastMs;
  }

  x(atMs: number): number {
    return this.leftPx + ((atMs - this.fromMs) / (this.toMs - this.fromMs)) * this.widthPx;
  }

  at(x: number): number {
    return this.fromMs + ((x - this.leftPx) / this.widthPx) * (this.toMs - this.fromMs);
  }

  get msPerPx(): number {
    return (this.toMs - this.fromMs) / this.widthPx;
  }

  shows(fromMs: number, toMs: number): boolean {
    return toMs >= this.fromMs && fromMs <= this.toMs;
  }

  show(fromMs: number, toMs: number): void {
    const allMs = this.lastMs - this.firstMs;
    const spanMs = Math.min(allMs, Math.max(this.shortestMs, toMs - fromMs));
    const middle = (fromMs + toMs) / 2;
    const from = Math.min(this.lastMs - spanMs, Math.max(this.firstMs, middle - spanMs / 2));
    this.fromMs = from;
    this.toMs = from + spanMs;
  }

  /** Zooms, so that the moment `aroundMs` keeps its position. */
  zoom(factor: number, aroundMs: number): void {
    const allMs = this.lastMs - this.firstMs;
    const spanMs = Math.min(allMs, Math.max(this.shortestMs, (this.toMs - this.fromMs) / factor));
    const share = (aroundMs - this.fromMs) / (this.toMs - this.fromMs);
    const fromMs = aroundMs - share * spanMs;
    this.show(fromMs, fromMs + spanMs);
  }

  pan(byMs: number): void {
    this.show(this.fromMs + byMs, this.toMs + byMs);
  }

  /** Ticks for the axis: round numbers, about one each `everyPx`. */
  ticks(everyPx: number): { readonly atMs: number; readonly label: string }[] {
    const roughMs = this.msPerPx * everyPx;
    const power = 10 ** Math.floor(Math.log10(roughMs));
    const stepMs = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= roughMs) ?? power;
    const digits = Math.max(0, Math.ceil(-Math.log10(stepMs / 1_000) - 1e-9));
    const ticks = [];
    for (let i = Math.ceil(this.fromMs / stepMs); i * stepMs <= this.toMs; i++) {
      ticks.push({ atMs: i * stepMs, label: `${((i * stepMs) / 1_000).toFixed(digits)} s` });
    }
    return ticks;
  }
}
