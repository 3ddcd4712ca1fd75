/// <reference lib="dom" />

/** The colours of the page's style sheet, for the canvas. */
export class Theme {
  readonly font: string;
  readonly ink: string;
  readonly muted: string;
  readonly line: string;
  readonly panel: string;
  readonly bad: string;
  readonly fault: string;
  readonly faultInk: string;
  readonly onBar: string;
  readonly bars: readonly string[];

  constructor() {
    const style = getComputedStyle(document.documentElement);
    const read = (name: string): string => style.getPropertyValue(`--${name}`).trim();
    this.font = read("sans");
    this.ink = read("ink");
    this.muted = read("muted");
    this.line = read("line");
    this.panel = read("panel");
    this.bad = read("bad");
    this.fault = read("fault");
    this.faultInk = read("fault-ink");
    this.onBar = read("on-bar");
    this.bars = Array.from({ length: 8 }, (_, i) => read(`bar-${i}`));
  }

  bar(index: number): string {
    return this.bars[Math.max(0, index) % this.bars.length]!;
  }
}
