export interface Span {
  readonly fromMs: number;
  readonly toMs: number;
}

/** Intervals in order of time, without overlaps. */
export class Spans {
  readonly #spans: readonly Span[];
  /** The total length of all intervals before this one. */
  readonly #coveredMs: number[] = [];

  constructor(spans: Iterable<Span>) {
    this.#spans = merge([...spans].sort((a, b) => a.fromMs - b.fromMs));
    let coveredMs = 0;
    for (const { fromMs, toMs } of this.#spans) {
      this.#coveredMs.push(coveredMs);
      coveredMs += toMs - fromMs;
    }
  }

  [Symbol.iterator](): Iterator<Span> {
    return this.#spans[Symbol.iterator]();
  }

  /** The intervals that touch this time, its ends included. */
  *touching(fromMs: number, toMs: number): Iterable<Span> {
    for (let i = this.#firstEndingFrom(fromMs); i < this.#spans.length; i++) {
      const span = this.#spans[i]!;
      if (span.fromMs > toMs) return;
      yield span;
    }
  }

  touches(fromMs: number, toMs: number): boolean {
    for (const _ of this.touching(fromMs, toMs)) return true;
    return false;
  }

  /** How much of this time the intervals cover. */
  coverMs(fromMs: number, toMs: number): number {
    return fromMs < toMs ? this.#coverUntil(toMs) - this.#coverUntil(fromMs) : 0;
  }

  /** The times outside the intervals. */
  gaps(): readonly Span[] {
    const ends = [{ toMs: Number.NEGATIVE_INFINITY }, ...this.#spans];
    const starts = [...this.#spans, { fromMs: Number.POSITIVE_INFINITY }];
    return ends
      .map(({ toMs: fromMs }, i) => ({ fromMs, toMs: starts[i]!.fromMs }))
      .filter(({ fromMs, toMs }) => fromMs < toMs);
  }

  /**
   * The moment `graceMs` after `atMs`; if an interval begins before that moment, at least `anewMs`
   * after the end of the interval.
   */
  graceAfter(atMs: number, graceMs: number, anewMs = graceMs): number {
    let dueMs = atMs + graceMs;
    for (const { fromMs, toMs } of this.touching(atMs, Number.POSITIVE_INFINITY)) {
      if (fromMs > dueMs) break;
      dueMs = Math.max(dueMs, toMs + anewMs);
    }
    return dueMs;
  }

  #coverUntil(atMs: number): number {
    const i = this.#firstEndingFrom(atMs);
    const span = this.#spans[i];
    if (span !== undefined) return this.#coveredMs[i]! + Math.max(0, atMs - span.fromMs);
    const last = this.#spans.at(-1);
    return last === undefined ? 0 : this.#coveredMs.at(-1)! + last.toMs - last.fromMs;
  }

  #firstEndingFrom(atMs: number): number {
    return firstIndex(this.#spans, ({ toMs }) => toMs >= atMs);
  }
}

/** The first index for which `isSo` is true, by bisection: it must then be true for all later ones. */
export function firstIndex<T>(sorted: readonly T[], isSo: (item: T) => boolean): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isSo(sorted[middle]!)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function merge(sorted: readonly Span[]): Span[] {
  const merged: Span[] = [];
  for (const span of sorted) {
    const last = merged.at(-1);
    if (last === undefined || span.fromMs > last.toMs) merged.push(span);
    else if (span.toMs > last.toMs) merged[merged.length - 1] = { ...last, toMs: span.toMs };
  }
  return merged;
}
