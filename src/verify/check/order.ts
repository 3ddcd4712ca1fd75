import {
  endOfWait,
  fitTogether,
  type Granted,
  isGranted,
  type Operation,
  type Run,
  who,
} from "./operations.js";
import { firstIndex } from "./spans.js";
import type { Finding, Limits, Violation } from "./verdict.js";

type Queued = Operation & { readonly queued: NonNullable<Operation["queued"]> };

/** A ticket is renewed after a third of its ttl: so much of it in silence may cost the place. */
const SILENCE = 1 / 2;
/** Each costs a search through the queue. */
const MOST_VIOLATIONS = 100;

/** L4: who asks when another's ticket stands is granted after it. */
export function order(run: Run, { fair, endMs }: Limits): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const operations of fair ? run.names.values() : []) {
    const queue = operations
      .filter((op): op is Queued => op.queued !== undefined)
      .sort((a, b) => a.queued.atMs - b.queued.atMs);
    const waiting = new Waiting(queue);
    const grants = operations.filter(isGranted);
    grants.sort((a, b) => (a.granted.token < b.granted.token ? -1 : 1));
    for (const op of grants) {
      const ahead = firstIndex(queue, ({ queued }) => queued.atMs >= op.asked.atMs);
      if (waiting.lastEndMs(ahead) > op.asked.atMs) checked++;
      const other = waiting.find(ahead, op, (one) => isOvertaken(run, one, op, endMs));
      if (other === undefined) continue;
      const end = (other.granted ?? other.notGranted)!;
      const then = other.granted
        ? `before it, with token ${other.granted.token}`
        : `while it waited, until ${run.at(end.atMs)}`;
      violations.push({
        atMs: op.granted.atMs,
        sinceMs: other.asked.atMs,
        why: `${who(other)} stood in the queue for ${JSON.stringify(op.asked.name)} at ${run.at(other.queued.atMs)}; ${who(op)} asked at ${run.at(op.asked.atMs)} and was granted token ${op.granted.token} ${then}`,
        evidence: [other.asked, other.queued, op.asked, op.granted, end],
      });
      if (violations.length >= MOST_VIOLATIONS) break;
    }
  }
  const lacks = fair
    ? "nobody asked for a name while another's ticket stood"
    : "the order is not promised here";
  return { checked, violations, lacks };
}

/** A queue from which those who are no longer in it are taken out. */
class Waiting {
  readonly #queue: readonly Queued[];
  /** For each place, itself or a later one that is still in the queue. */
  readonly #next: Int32Array;
  readonly #lastEndMs: readonly number[];

  constructor(queue: readonly Queued[]) {
    this.#queue = queue;
    this.#next = Int32Array.from({ length: queue.length + 1 }, (_, i) => i);
    let lastMs = Number.NEGATIVE_INFINITY;
    this.#lastEndMs = queue.map((op) => {
      lastMs = Math.max(lastMs, endOfWait(op)?.atMs ?? Number.POSITIVE_INFINITY);
      return lastMs;
    });
  }

  /** When the last of so many stopped waiting. */
  lastEndMs(count: number): number {
    return this.#lastEndMs[count - 1] ?? Number.NEGATIVE_INFINITY;
  }

  /** Of the first so many, one that still waited when the other was granted. */
  find(count: number, other: Granted, isSo: (op: Queued) => boolean): Queued | undefined {
    for (let i = this.#from(0); i < count; i = this.#from(i + 1)) {
      const op = this.#queue[i]!;
      if (isServed(op, other)) this.#next[i] = i + 1;
      else if (isSo(op)) return op;
    }
    return undefined;
  }

  #from(place: number): number {
    let found = place;
    while (this.#next[found] !== found) found = this.#next[found]!;
    for (let i = place; i !== found; ) {
      const next = this.#next[i]!;
      this.#next[i] = found;
      i = next;
    }
    return found;
  }
}

/** It was granted before the other, or gave up; and so before all that are granted later. */
function isServed({ granted, notGranted, killed }: Queued, other: Granted): boolean {
  if (granted === undefined) {
    return ((notGranted ?? killed)?.atMs ?? Number.POSITIVE_INFINITY) <= other.granted.atMs;
  }
  return granted.token <= other.granted.token || granted.atMs < other.asked.atMs;
}

function isOvertaken(run: Run, op: Queued, by: Granted, endMs: number): boolean {
  const { asked, granted, notGranted, made, kept, revocations, group, resizes } = op;
  const end = granted ?? notGranted;
  if (end === undefined) return false;
  // One of several names that nobody renews may run out while the others are waited for; then all of
  // them are asked for again.
  if (group.length > 1 && asked.renew === false) return false;
  const pauses = run.pausesOf(asked.client);
  const atMs = by.made?.atMs ?? by.granted.atMs;
  // Its ticket is gone before it says that it gave up, and a pause may lie in between.
  if (granted === undefined) {
    const pausedMs = pauses.coverMs(atMs, end.atMs);
    if (end.atMs - pausedMs - endMs <= atMs) return false;
  }
  // A revoked grant with a lower token was made before the other grant, whenever it was revoked.
  if (revocations.some(({ token }) => token < by.granted.token)) return false;
  // It was first, and could not take the grant; or another of its names was revoked, and all of them
  // are asked for again.
  const others = group.filter((one) => one !== op);
  const turns = [made, kept[0], ...others.map((one) => one.revocations[0])];
  if (turns.some((turn) => turn !== undefined && turn.atMs <= atMs)) return false;
  // A grant that its client did not hear of may have stood beside the other's grant, and have run out
  // later. Where the store is looked into, `kept` tells of it.
  const isUnheard =
    by.made === undefined &&
    fitTogether(op, by) &&
    (pauses.touches(by.asked.atMs, atMs) || run.faults.touches(by.asked.atMs, atMs));
  const untilMs = isUnheard ? end.atMs : atMs;
  if (run.storeFaults.touches(asked.atMs, untilMs)) return false;
  // It asked for more than there is, and its ticket was dropped.
  if (resizes.some((one) => one.limit < asked.permits && one.sinceMs <= atMs)) return false;
  const silentMs = pauses.coverMs(asked.atMs, untilMs) + run.faults.coverMs(asked.atMs, untilMs);
  return silentMs <= asked.ttlMs * SILENCE;
}
