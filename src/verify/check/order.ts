import {
  endOfWait,
  fitTogether,
  type Granted,
  isGranted,
  type Operation,
  type Run,
  type TicketProof,
  who,
} from "./operations.js";
import { firstIndex } from "./spans.js";
import type { Finding, Limits, Violation } from "./verdict.js";

type Queued = Operation & { readonly queued: NonNullable<Operation["queued"]> };

/**
 * A ticket is renewed after a third of its ttl. A client that is silent for this share of the ttl
 * may lose its place.
 */
const SILENCE = 1 / 2;
/** A proof of a ticket counts for this share of the ttl: the store's clock may run 1 % fast. */
const PROVED = 0.99;
/** Limits the work: each violation costs a search through the queue. */
const MOST_VIOLATIONS = 100;

/** L4: a client whose request comes after another's ticket is granted after that ticket. */
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
        why: `${who(other)} was in the queue for ${JSON.stringify(op.asked.name)} at ${run.at(other.queued.atMs)}; ${who(op)} requested it at ${run.at(op.asked.atMs)} and was granted token ${op.granted.token} ${then}`,
        evidence: [
          other.asked,
          ...(proofOfTicket(other, op) ?? [other.queued]),
          op.asked,
          op.granted,
          end,
        ],
      });
      if (violations.length >= MOST_VIOLATIONS) break;
    }
  }
  const lacks = fair
    ? "nobody requested a name while another waited for it"
    : "the order is not promised here";
  return { checked, violations, lacks };
}

/** A queue that skips waiters that have left it. */
class Waiting {
  readonly #queue: readonly Queued[];
  /** For each place, the same or a later place whose waiter is still in the queue. */
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

  /** The moment when the last of the first `count` waiters stopped waiting. */
  lastEndMs(count: number): number {
    return this.#lastEndMs[count - 1] ?? Number.NEGATIVE_INFINITY;
  }

  /** The first of `count` waiters that still waited when `other` was granted, and for which `isSo` is true. */
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

/**
 * Whether the waiter was granted before the other, or gave up. Either way it is also served before
 * all later grants.
 */
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
  // A multi-lock that is not renewed may lose one name while it waits for the others; then it
  // claims all names again.
  if (group.length > 1 && asked.renew === false) return false;
  const pauses = run.pausesOf(asked.client);
  const atMs = by.made?.atMs ?? by.granted.atMs;
  const isProved = op.ticketProofs.length > 0;
  if (isProved && proofOfTicket(op, by) === null) return false;
  // The ticket is gone before the client reports that it gave up, and a pause may lie in between.
  if (granted === undefined) {
    const pausedMs = pauses.coverMs(atMs, end.atMs);
    if (end.atMs - pausedMs - endMs <= atMs) return false;
  }
  // A revoked grant with a lower token was made before the other grant, whenever it was revoked.
  if (revocations.some(({ token }) => token < by.granted.token)) return false;
  // The op had its turn and could not take the grant; or another of its names was revoked, and it
  // claims all names again.
  const others = group.filter((one) => one !== op);
  const turns = [made, kept[0], ...others.map((one) => one.revocations[0])];
  if (turns.some((turn) => turn !== undefined && turn.atMs <= atMs)) return false;
  // A grant that its client did not learn of may have stood beside the other's grant and have
  // expired later. Where the store is observed, `kept` shows it.
  // A running client learns of its grant by the next renewal of its ticket at the latest, so a pause
  // that begins sooner may hide the grant, too.
  const learnsByMs = atMs + asked.ttlMs * SILENCE;
  const isUnheard =
    !isProved &&
    by.made === undefined &&
    fitTogether(op, by) &&
    (pauses.touches(by.asked.atMs, learnsByMs) || run.faults.touches(by.asked.atMs, learnsByMs));
  const untilMs = isUnheard ? end.atMs : atMs;
  if (run.storeFaultsOf(asked.name).touches(asked.atMs, untilMs)) return false;
  // The op claimed more permits than the resize left, and its ticket was dropped.
  if (resizes.some((one) => one.limit < asked.permits && one.sinceMs <= atMs)) return false;
  // A multi-lock that loses one name drops its ticket for another.
  if (isProved && group.length === 1) return true;
  const silentMs = pauses.coverMs(asked.atMs, untilMs) + run.faults.coverMs(asked.atMs, untilMs);
  return silentMs <= asked.ttlMs * SILENCE;
}

/**
 * The fewest replies which prove that the store kept one and the same ticket from before the other's
 * request until after the other's grant; null if there are none. A client that runs may lose its
 * place: nobody can renew a ticket while the store hangs, for instance while a process that was
 * stopped in the middle of a transaction keeps an SQLite file locked.
 */
function proofOfTicket(op: Queued, by: Granted): readonly TicketProof[] | null {
  const keptUntilMs = ({ sentAtMs }: TicketProof): number => sentAtMs + op.asked.ttlMs * PROVED;
  const isComplete = (last: TicketProof): boolean => {
    if (keptUntilMs(last) < by.granted.atMs) return false;
    if (by.made !== undefined || !fitTogether(op, by)) return true;
    // Both may have been granted in one step, in order, and the op may have missed that grant and got
    // another one later. Not if it still waited after the other's grant, nor if the ticket cannot have
    // expired before the grant that the op received.
    const stillWaited = last.sentAtMs >= by.granted.atMs;
    return stillWaited || (op.granted !== undefined && op.granted.atMs <= keptUntilMs(last));
  };
  let replies: TicketProof[] = [];
  for (const reply of op.ticketProofs) {
    const last = replies.at(-1);
    // A reply that a later one has overtaken.
    if (last !== undefined && reply.sentAtMs < last.sentAtMs) continue;
    if (reply.atMs < by.asked.atMs) replies = [reply];
    // Perhaps another ticket, behind the other's request: the request may have been under way until the reply.
    else if (last === undefined || reply.atMs > keptUntilMs(last)) return null;
    else {
      const before = replies.at(-2);
      if (before !== undefined && reply.atMs <= keptUntilMs(before)) replies.pop();
      replies.push(reply);
    }
    if (isComplete(reply)) return replies;
  }
  return null;
}
