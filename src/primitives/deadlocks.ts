import type { NameInfo, WaiterInfo } from "../core/store.js";
import { append } from "../stores/shared/append.js";

/** A holder of a name that waits for another name. */
export interface Stuck {
  /** The label of the holder. */
  readonly holder: string;
  /** The name that it waits for. */
  readonly waitsFor: string;
  /** For how long, in milliseconds. */
  readonly waitingMs: number;
  /** The label that blocks this holder: it holds the name, or waits for it further in front. */
  readonly blockedBy: string;
  /** The names that it holds. */
  readonly holds: readonly string[];
}

/** A circle of holders: each is blocked by the next, the last by the first. */
export type Deadlock = readonly Stuck[];

/** A waiter, and its index in the queue of a name. */
interface Ticket {
  readonly label: string;
  readonly permits: number;
  readonly waitingMs: number;
  readonly place: Place;
  readonly at: number;
}

/** A name: how much of it each label holds, and the queue, of which those from `head` on still wait. */
interface Place {
  readonly name: string;
  readonly limit: number;
  readonly held: Map<string, number>;
  inUse: number;
  readonly queue: readonly WaiterInfo[];
  head: number;
}

type ByLabel<T> = Map<string, T[]>;

/**
 * Finds the labels that can never go on. A label that waits for nothing will release what it holds;
 * then the front of each queue goes on, and so forth. The labels that are left at the end are stuck.
 * That is right for readers and permits too, where a circle alone proves nothing.
 *
 * Takes linear time, in slices, so that the event loop is not blocked for long.
 */
export async function findDeadlocks(infos: readonly NameInfo[]): Promise<readonly Deadlock[]> {
  const slices = new Slices();
  const places: Place[] = [];
  const holds: ByLabel<Place> = new Map();
  for (const info of infos) {
    const place = placeOf(info);
    places.push(place);
    for (const label of place.held.keys()) append(holds, label, place);
    if (slices.isOver(info.holders.length)) await slices.next();
  }
  await removeUnblocked(places, holds, slices);
  const tickets = await stuckTickets(places, slices);
  return tickets.size === 0 ? [] : circles(places, tickets, holds, slices);
}

/**
 * Keeps what both snapshots contain, which was there all the time between: a grant with the same
 * token, a ticket with the same label that has waited no shorter than before.
 */
export async function inBoth(
  first: readonly NameInfo[],
  second: readonly NameInfo[],
): Promise<readonly NameInfo[]> {
  const slices = new Slices();
  const before = new Map<string, NameInfo>();
  for (const info of first) {
    before.set(info.name, info);
    if (slices.isOver()) await slices.next();
  }
  const both: NameInfo[] = [];
  for (const info of second) {
    const { holders = [], waiters = [] } = before.get(info.name) ?? {};
    const tokens = new Set(holders.map(({ token }) => token));
    const waitedMs = new Map<string, number>();
    for (const { holder, waitingMs } of waiters) {
      waitedMs.set(holder, Math.min(waitingMs, waitedMs.get(holder) ?? waitingMs));
    }
    both.push({
      ...info,
      holders: info.holders.filter(({ token }) => tokens.has(token)),
      waiters: info.waiters.filter(
        ({ holder, waitingMs }) => waitingMs >= (waitedMs.get(holder) ?? Number.POSITIVE_INFINITY),
      ),
    });
    if (slices.isOver(tokens.size + waiters.length)) await slices.next();
  }
  return both;
}

/** A few milliseconds of work. */
const STEPS = 4_000;

/** Yields to the event loop after a number of steps; not by a clock, so that each run is the same. */
class Slices {
  #left = STEPS;

  isOver(steps = 1): boolean {
    this.#left -= steps + 1;
    return this.#left < 0;
  }

  async next(): Promise<void> {
    this.#left = STEPS;
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function placeOf({ name, limit, holders, waiters }: NameInfo): Place {
  const held = new Map<string, number>();
  let inUse = 0;
  for (const { holder, permits, closed } of holders) {
    // A name that `atLeast` keeps closed opens by itself.
    if (closed) continue;
    held.set(holder, (held.get(holder) ?? 0) + permits);
    inUse += permits;
  }
  return { name, limit, held, inUse, queue: waiters, head: 0 };
}

/** Leaves only stuck labels in the places. `holds`: the places in which each label holds something from the start. */
async function removeUnblocked(
  places: readonly Place[],
  holds: ByLabel<Place>,
  slices: Slices,
): Promise<void> {
  const waiting = new Map<string, number>();
  for (const { queue } of places) {
    for (const { holder } of queue) waiting.set(holder, (waiting.get(holder) ?? 0) + 1);
    if (slices.isOver(queue.length)) await slices.next();
  }
  const gained: ByLabel<Place> = new Map();
  const giveBack = async (label: string): Promise<void> => {
    for (const place of [...(holds.get(label) ?? []), ...(gained.get(label) ?? [])]) {
      place.inUse -= place.held.get(label) ?? 0;
      place.held.delete(label);
      changed.push(place);
      if (slices.isOver()) await slices.next();
    }
  };
  const changed = [...places];
  for (const label of holds.keys()) {
    if (!waiting.has(label)) await giveBack(label);
    if (slices.isOver()) await slices.next();
  }
  for (let place = changed.pop(); place !== undefined; place = changed.pop()) {
    for (let next = place.queue[place.head]; next !== undefined; next = place.queue[place.head]) {
      const { holder, permits } = next;
      if (!fits(place, holder, permits)) break;
      place.head++;
      place.held.set(holder, (place.held.get(holder) ?? 0) + permits);
      place.inUse += permits;
      append(gained, holder, place);
      const left = waiting.get(holder)! - 1;
      waiting.set(holder, left);
      if (left === 0) await giveBack(holder);
      if (slices.isOver()) await slices.next();
    }
    if (slices.isOver()) await slices.next();
  }
}

/** A label does not block itself: it may do several things at a time. */
function fits({ held, inUse, limit }: Place, label: string, permits: number): boolean {
  return inUse - (held.get(label) ?? 0) + permits <= limit;
}

async function stuckTickets(places: readonly Place[], slices: Slices): Promise<ByLabel<Ticket>> {
  const tickets: ByLabel<Ticket> = new Map();
  for (const place of places) {
    for (let at = place.head; at < place.queue.length; at++) {
      const { holder: label, permits, waitingMs } = place.queue[at]!;
      append(tickets, label, { label, permits, waitingMs, place, at });
      if (slices.isOver()) await slices.next();
    }
    if (slices.isOver()) await slices.next();
  }
  return tickets;
}

/** One circle through each stuck label that is in none yet. Labels that merely wait behind a circle are in none. */
async function circles(
  places: readonly Place[],
  tickets: ByLabel<Ticket>,
  holds: ByLabel<Place>,
  slices: Slices,
): Promise<readonly Deadlock[]> {
  const found: Deadlock[] = [];
  const reported = new Set<string>();
  const groups = await groupsOf(places, tickets, slices);
  for (const [label, group] of groups) {
    // The first circle of a group begins with its least label, whichever name is looked at first.
    for (const from of [group.least, label]) {
      if (reported.has(from)) continue;
      const circle: Stuck[] = [];
      for (const { ticket, blockedBy } of await shortestCircle(from, tickets, groups, slices)) {
        reported.add(ticket.label);
        circle.push({
          holder: ticket.label,
          waitsFor: ticket.place.name,
          waitingMs: ticket.waitingMs,
          blockedBy,
          holds: (holds.get(ticket.label) ?? []).map(({ name }) => name),
        });
        if (slices.isOver()) await slices.next();
      }
      found.push(circle);
    }
    if (slices.isOver()) await slices.next();
  }
  return found;
}

interface Step {
  readonly ticket: Ticket;
  readonly blockedBy: string;
}

/** Breadth-first search from a label back to itself, within its group. */
async function shortestCircle(
  from: string,
  tickets: ByLabel<Ticket>,
  groups: Map<string, Group>,
  slices: Slices,
): Promise<readonly Step[]> {
  const group = groups.get(from);
  const reachedBy = new Map<string, Step | null>([[from, null]]);
  const ownTickets = new Map<Place, number>();
  for (const { place, at } of tickets.get(from)!.toReversed()) ownTickets.set(place, at);
  const holdersSeen = new Set<Place>();
  /** Up to where each queue has been looked through. */
  const queueSeen = new Map<Place, number>();
  // A map may grow while it is walked: it is the queue of the search too.
  for (const label of reachedBy.keys()) {
    for (const ticket of tickets.get(label)!) {
      const { place, at, permits } = ticket;
      // A reader behind a writer is blocked by the writer, not by the readers who hold the name.
      const byHolders = !fits(place, label, permits);
      const byFrom = (byHolders && place.held.has(from)) || (ownTickets.get(place) ?? at) < at;
      if (byFrom && label !== from) {
        return stepsTo({ ticket, blockedBy: from }, reachedBy, slices);
      }
      const reach = (blockedBy: string): void => {
        if (groups.get(blockedBy) !== group || reachedBy.has(blockedBy)) return;
        reachedBy.set(blockedBy, { ticket, blockedBy });
      };
      if (byHolders && !holdersSeen.has(place)) {
        holdersSeen.add(place);
        for (const one of place.held.keys()) reach(one);
        if (slices.isOver(place.held.size)) await slices.next();
      }
      const start = queueSeen.get(place) ?? place.head;
      for (let i = start; i < at; i++) reach(place.queue[i]!.holder);
      queueSeen.set(place, Math.max(start, at));
      if (slices.isOver()) await slices.next();
    }
  }
  throw new Error("labels that block each other in turn must form a circle");
}

async function stepsTo(
  last: Step,
  reachedBy: Map<string, Step | null>,
  slices: Slices,
): Promise<readonly Step[]> {
  const steps = [last];
  for (let step = reachedBy.get(last.ticket.label); step; step = reachedBy.get(step.ticket.label)) {
    steps.push(step);
    if (slices.isOver()) await slices.next();
  }
  return steps.reverse();
}

/** Labels that block each other in turn. */
interface Group {
  size: number;
  least: string;
}

/**
 * The group of each label that is in a circle. Each ticket is blocked by all before it: a node for
 * each place in a queue, which leads to the one before, says so without an edge for each pair.
 */
async function groupsOf(
  places: readonly Place[],
  tickets: ByLabel<Ticket>,
  slices: Slices,
): Promise<Map<string, Group>> {
  const nodes = new Map<string, number>();
  const edges: number[][] = [];
  for (const label of tickets.keys()) {
    nodes.set(label, edges.push([]) - 1);
    if (slices.isOver()) await slices.next();
  }
  for (const place of places) {
    const { held, queue, head } = place;
    if (head === queue.length) continue;
    const holders = edges.push([...held.keys()].flatMap((one) => nodes.get(one) ?? [])) - 1;
    for (let at = head; at < queue.length; at++) {
      const { holder, permits } = queue[at]!;
      const node = nodes.get(holder)!;
      const before = edges.length - 1;
      if (!fits(place, holder, permits)) edges[node]!.push(holders);
      if (at > head) edges[node]!.push(before);
      edges.push(at > head ? [node, before] : [node]);
    }
    if (slices.isOver(held.size + queue.length)) await slices.next();
  }
  const components = await componentsOf(edges, slices);
  const byComponent = new Map<number, Group>();
  for (const [label, node] of nodes) {
    const group = byComponent.get(components[node]!);
    if (group === undefined) byComponent.set(components[node]!, { size: 1, least: label });
    else {
      group.size++;
      if (label < group.least) group.least = label;
    }
    if (slices.isOver()) await slices.next();
  }
  const groups = new Map<string, Group>();
  for (const [label, node] of nodes) {
    const group = byComponent.get(components[node]!)!;
    if (group.size > 1) groups.set(label, group);
    if (slices.isOver()) await slices.next();
  }
  return groups;
}

/** The strongly connected component of each node, by Tarjan's algorithm without recursion. */
async function componentsOf(
  edges: readonly (readonly number[])[],
  slices: Slices,
): Promise<Int32Array> {
  const count = edges.length;
  const components = new Int32Array(count).fill(-1);
  const order = new Int32Array(count).fill(-1);
  const low = new Int32Array(count);
  /** How many of a node's edges have been followed. */
  const followed = new Int32Array(count);
  const open: number[] = [];
  let visited = 0;
  let found = 0;
  for (let root = 0; root < count; root++) {
    if (order[root] !== -1) continue;
    const path = [root];
    for (let node = path.at(-1); node !== undefined; node = path.at(-1)) {
      if (slices.isOver()) await slices.next();
      if (order[node] === -1) {
        order[node] = low[node] = visited++;
        open.push(node);
      }
      const to = edges[node]![followed[node]!++];
      if (to !== undefined) {
        if (order[to] === -1) path.push(to);
        else if (components[to] === -1) low[node] = Math.min(low[node]!, order[to]!);
        continue;
      }
      path.pop();
      const parent = path.at(-1);
      if (parent !== undefined) low[parent] = Math.min(low[parent]!, low[node]!);
      if (low[node] !== order[node]) continue;
      for (let one = open.pop()!; ; one = open.pop()!) {
        components[one] = found;
        if (one === node) break;
        if (slices.isOver()) await slices.next();
      }
      found++;
    }
  }
  return components;
}
