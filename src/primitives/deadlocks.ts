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
  readonly use: NameUse;
  readonly at: number;
}

/** How much of a name each label holds, and its queue, of which those from `head` on still wait. */
interface NameUse {
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
 * Takes linear time, and yields now and then, so that the event loop is not blocked for long.
 */
export async function findDeadlocks(infos: readonly NameInfo[]): Promise<readonly Deadlock[]> {
  const budget = new StepBudget();
  const uses: NameUse[] = [];
  const holds: ByLabel<NameUse> = new Map();
  for (const info of infos) {
    const use = useOf(info);
    uses.push(use);
    for (const label of use.held.keys()) append(holds, label, use);
    if (budget.spend(info.holders.length)) await budget.refill();
  }
  await removeUnblocked(uses, holds, budget);
  const tickets = await stuckTickets(uses, budget);
  return tickets.size === 0 ? [] : circles(uses, tickets, holds, budget);
}

/**
 * Keeps what both snapshots contain, which was there all the time between: a grant with the same
 * token, a ticket with the same label that has waited no shorter than before.
 */
export async function inBoth(
  first: readonly NameInfo[],
  second: readonly NameInfo[],
): Promise<readonly NameInfo[]> {
  const budget = new StepBudget();
  const before = new Map<string, NameInfo>();
  for (const info of first) {
    before.set(info.name, info);
    if (budget.spend()) await budget.refill();
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
    if (budget.spend(tokens.size + waiters.length)) await budget.refill();
  }
  return both;
}

/** A few milliseconds of work. */
const STEPS = 4_000;

/** The steps until the search yields to the event loop: counted, not timed, so that each run is the same. */
class StepBudget {
  #left = STEPS;

  /** Returns whether nothing is left: then it must be refilled. */
  spend(steps = 1): boolean {
    this.#left -= steps + 1;
    return this.#left < 0;
  }

  async refill(): Promise<void> {
    this.#left = STEPS;
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function useOf({ name, limit, holders, waiters }: NameInfo): NameUse {
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

/** Leaves only stuck labels in the uses. `holds`: the names that each label holds from the start. */
async function removeUnblocked(
  uses: readonly NameUse[],
  holds: ByLabel<NameUse>,
  budget: StepBudget,
): Promise<void> {
  const waiting = new Map<string, number>();
  for (const { queue } of uses) {
    for (const { holder } of queue) waiting.set(holder, (waiting.get(holder) ?? 0) + 1);
    if (budget.spend(queue.length)) await budget.refill();
  }
  const gained: ByLabel<NameUse> = new Map();
  const giveBack = async (label: string): Promise<void> => {
    for (const use of [...(holds.get(label) ?? []), ...(gained.get(label) ?? [])]) {
      use.inUse -= use.held.get(label) ?? 0;
      use.held.delete(label);
      changed.push(use);
      if (budget.spend()) await budget.refill();
    }
  };
  const changed = [...uses];
  for (const label of holds.keys()) {
    if (!waiting.has(label)) await giveBack(label);
    if (budget.spend()) await budget.refill();
  }
  for (let use = changed.pop(); use !== undefined; use = changed.pop()) {
    for (let next = use.queue[use.head]; next !== undefined; next = use.queue[use.head]) {
      const { holder, permits } = next;
      if (!fits(use, holder, permits)) break;
      use.head++;
      use.held.set(holder, (use.held.get(holder) ?? 0) + permits);
      use.inUse += permits;
      append(gained, holder, use);
      const left = waiting.get(holder)! - 1;
      waiting.set(holder, left);
      if (left === 0) await giveBack(holder);
      if (budget.spend()) await budget.refill();
    }
    if (budget.spend()) await budget.refill();
  }
}

/** A label does not block itself: it may do several things at a time. */
function fits({ held, inUse, limit }: NameUse, label: string, permits: number): boolean {
  return inUse - (held.get(label) ?? 0) + permits <= limit;
}

async function stuckTickets(
  uses: readonly NameUse[],
  budget: StepBudget,
): Promise<ByLabel<Ticket>> {
  const tickets: ByLabel<Ticket> = new Map();
  for (const use of uses) {
    for (let at = use.head; at < use.queue.length; at++) {
      const { holder: label, permits, waitingMs } = use.queue[at]!;
      append(tickets, label, { label, permits, waitingMs, use, at });
      if (budget.spend()) await budget.refill();
    }
    if (budget.spend()) await budget.refill();
  }
  return tickets;
}

/** One circle through each stuck label that is in none yet. Labels that merely wait behind a circle are in none. */
async function circles(
  uses: readonly NameUse[],
  tickets: ByLabel<Ticket>,
  holds: ByLabel<NameUse>,
  budget: StepBudget,
): Promise<readonly Deadlock[]> {
  const found: Deadlock[] = [];
  const reported = new Set<string>();
  const groups = await groupsOf(uses, tickets, budget);
  for (const [label, group] of groups) {
    // The first circle of a group begins with its least label, whichever name is looked at first.
    for (const from of [group.least, label]) {
      if (reported.has(from)) continue;
      const circle: Stuck[] = [];
      for (const { ticket, blockedBy } of await shortestCircle(from, tickets, groups, budget)) {
        reported.add(ticket.label);
        circle.push({
          holder: ticket.label,
          waitsFor: ticket.use.name,
          waitingMs: ticket.waitingMs,
          blockedBy,
          holds: (holds.get(ticket.label) ?? []).map(({ name }) => name),
        });
        if (budget.spend()) await budget.refill();
      }
      found.push(circle);
    }
    if (budget.spend()) await budget.refill();
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
  budget: StepBudget,
): Promise<readonly Step[]> {
  const group = groups.get(from);
  const reachedBy = new Map<string, Step | null>([[from, null]]);
  const ownTickets = new Map<NameUse, number>();
  for (const { use, at } of tickets.get(from)!.toReversed()) ownTickets.set(use, at);
  const holdersSeen = new Set<NameUse>();
  /** Up to where each queue has been looked through. */
  const queueSeen = new Map<NameUse, number>();
  // A map may grow while it is walked: it is the queue of the search too.
  for (const label of reachedBy.keys()) {
    for (const ticket of tickets.get(label)!) {
      const { use, at, permits } = ticket;
      // A reader behind a writer is blocked by the writer, not by the readers who hold the name.
      const byHolders = !fits(use, label, permits);
      const byFrom = (byHolders && use.held.has(from)) || (ownTickets.get(use) ?? at) < at;
      if (byFrom && label !== from) {
        return stepsTo({ ticket, blockedBy: from }, reachedBy, budget);
      }
      const reach = (blockedBy: string): void => {
        if (groups.get(blockedBy) !== group || reachedBy.has(blockedBy)) return;
        reachedBy.set(blockedBy, { ticket, blockedBy });
      };
      if (byHolders && !holdersSeen.has(use)) {
        holdersSeen.add(use);
        for (const one of use.held.keys()) reach(one);
        if (budget.spend(use.held.size)) await budget.refill();
      }
      const start = queueSeen.get(use) ?? use.head;
      for (let i = start; i < at; i++) reach(use.queue[i]!.holder);
      queueSeen.set(use, Math.max(start, at));
      if (budget.spend()) await budget.refill();
    }
  }
  throw new Error("labels that block each other in turn must form a circle");
}

async function stepsTo(
  last: Step,
  reachedBy: Map<string, Step | null>,
  budget: StepBudget,
): Promise<readonly Step[]> {
  const steps = [last];
  for (let step = reachedBy.get(last.ticket.label); step; step = reachedBy.get(step.ticket.label)) {
    steps.push(step);
    if (budget.spend()) await budget.refill();
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
 * each index in a queue, which leads to the one before, says so without an edge for each pair.
 */
async function groupsOf(
  uses: readonly NameUse[],
  tickets: ByLabel<Ticket>,
  budget: StepBudget,
): Promise<Map<string, Group>> {
  const nodes = new Map<string, number>();
  const edges: number[][] = [];
  for (const label of tickets.keys()) {
    nodes.set(label, edges.push([]) - 1);
    if (budget.spend()) await budget.refill();
  }
  for (const use of uses) {
    const { held, queue, head } = use;
    if (head === queue.length) continue;
    const holders = edges.push([...held.keys()].flatMap((one) => nodes.get(one) ?? [])) - 1;
    for (let at = head; at < queue.length; at++) {
      const { holder, permits } = queue[at]!;
      const node = nodes.get(holder)!;
      const before = edges.length - 1;
      if (!fits(use, holder, permits)) edges[node]!.push(holders);
      if (at > head) edges[node]!.push(before);
      edges.push(at > head ? [node, before] : [node]);
    }
    if (budget.spend(held.size + queue.length)) await budget.refill();
  }
  const components = await componentsOf(edges, budget);
  const byComponent = new Map<number, Group>();
  for (const [label, node] of nodes) {
    const group = byComponent.get(components[node]!);
    if (group === undefined) byComponent.set(components[node]!, { size: 1, least: label });
    else {
      group.size++;
      if (label < group.least) group.least = label;
    }
    if (budget.spend()) await budget.refill();
  }
  const groups = new Map<string, Group>();
  for (const [label, node] of nodes) {
    const group = byComponent.get(components[node]!)!;
    if (group.size > 1) groups.set(label, group);
    if (budget.spend()) await budget.refill();
  }
  return groups;
}

/** The strongly connected component of each node, by Tarjan's algorithm without recursion. */
async function componentsOf(
  edges: readonly (readonly number[])[],
  budget: StepBudget,
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
      if (budget.spend()) await budget.refill();
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
        if (budget.spend()) await budget.refill();
      }
      found++;
    }
  }
  return components;
}
