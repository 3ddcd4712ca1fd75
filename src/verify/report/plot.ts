import { html, type Markup } from "./html.js";
import { duration } from "./words.js";

/** A coordinate as short text. */
export const px = (value: number): string => String(Math.round(value * 10) / 10);

const WIDTH_PX = 420;
const RIGHT_PX = 8;
const BINS_PER_DECADE = 8;

/** Bins of equal width on a logarithmic axis. Values below the first edge count in the first bin. */
export interface Histogram {
  readonly fromMs: number;
  readonly toMs: number;
  readonly edges: readonly number[];
  count(values: readonly number[]): readonly number[];
}

/** Bins over whole decades around the values; values below 0.1 ms are not distinguished. */
export function decadeBins(values: readonly number[]): Histogram {
  const least = values.reduce((min, value) => Math.min(min, value), Number.POSITIVE_INFINITY);
  const most = values.reduce((max, value) => Math.max(max, value), 1);
  const first = Math.floor(Math.log10(Math.min(1, Math.max(0.1, least))));
  const last = Math.max(first + 1, Math.ceil(Math.log10(most * 1.000_001)));
  const bins = (last - first) * BINS_PER_DECADE;
  return {
    fromMs: 10 ** first,
    toMs: 10 ** last,
    edges: Array.from({ length: bins + 1 }, (_, i) => 10 ** (first + i / BINS_PER_DECADE)),
    count(all) {
      const counts = Array.from({ length: bins }, () => 0);
      for (const value of all) {
        const bin = Math.floor((Math.log10(Math.max(value, 1e-9)) - first) * BINS_PER_DECADE);
        counts[Math.min(bins - 1, Math.max(0, bin))]!++;
      }
      return counts;
    },
  };
}

/** The frame of a plot, and its scales. */
export class Axes {
  readonly heightPx: number;
  readonly leftPx: number;
  readonly rightPx = WIDTH_PX - RIGHT_PX;
  readonly bottomY: number;

  constructor({
    heightPx,
    leftPx,
    bottomPx,
  }: { heightPx: number; leftPx: number; bottomPx: number }) {
    this.heightPx = heightPx;
    this.leftPx = leftPx;
    this.bottomY = heightPx - bottomPx;
  }

  /** Converts a share of the width, 0 to 1. */
  x(share: number): number {
    return this.leftPx + share * (this.rightPx - this.leftPx);
  }

  logX(from: number, to: number): (value: number) => number {
    return (value) => this.x(logShare(value, from, to));
  }

  logY(from: number, to: number): (value: number) => number {
    return (value) => this.bottomY - logShare(value, from, to) * (this.bottomY - 8);
  }

  logTicks(from: number, to: number): Markup[] {
    const x = this.logX(from, to);
    return decades(from, to).map((value) => {
      const anchor = value === from ? "start" : value === to ? "end" : "middle";
      const label = value === from ? `≤ ${duration(value)}` : duration(value);
      return html`<text class="tick ${anchor}" x="${px(x(value))}" y="${this.bottomY + 14}">${label}</text>`;
    });
  }

  logYTicks(from: number, to: number): Markup[] {
    const y = this.logY(from, to);
    return decades(from, to).map((value) => {
      const at = px(y(value));
      return html`<line class="grid" x1="${this.leftPx}" x2="${this.rightPx}" y1="${at}" y2="${at}"/><text class="tick end" x="${this.leftPx - 4}" y="${px(y(value) + 3.5)}">${duration(value)}</text>`;
    });
  }

  /** A linear axis of time below the plot. */
  timeTicks(fromMs: number, toMs: number): Markup[] {
    const rough = (toMs - fromMs) / 6;
    const power = 10 ** Math.floor(Math.log10(rough));
    const stepMs = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough)!;
    const ticks: Markup[] = [];
    for (let i = Math.ceil(fromMs / stepMs); i * stepMs <= toMs; i++) {
      const at = px(this.x((i * stepMs - fromMs) / (toMs - fromMs)));
      const label = stepMs < 1_000 ? `${i * stepMs} ms` : `${(i * stepMs) / 1_000} s`;
      ticks.push(
        html`<text class="tick middle" x="${at}" y="${this.bottomY + 14}">${label}</text>`,
      );
    }
    return ticks;
  }

  svg(content: Markup, label: string, after?: Markup): Markup {
    return html`<svg class="plot" role="img" aria-label="${label}" viewBox="0 0 ${WIDTH_PX} ${this.heightPx}">${content}</svg>${after}`;
  }
}

function decades(from: number, to: number): readonly number[] {
  const first = Math.round(Math.log10(from));
  const last = Math.round(Math.log10(to));
  return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
}

const logShare = (value: number, from: number, to: number): number =>
  Math.max(0, Math.log10(Math.max(value, from) / from) / Math.log10(to / from));
