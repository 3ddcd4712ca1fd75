import type { NameInfo } from "../core/store.js";

/** One who holds a name and waits for another. */
export interface Stuck {
  readonly holder: string;
  readonly waitsFor: string;
  readonly waitingMs: number;
  /** Who stands in the way: by holding that name, or by waiting for it in front. */
  readonly blockedBy: string;
  /** What it holds, and others may wait for. */
  readonly holds: readonly string[];
}

/** A circle: each is blocked by the next, the last by the first. */
export type Deadlock = readonly Stuck[];

interface Ticket {
  readonly label: string;
  readonly permits: number;
  readonly waitingMs: number;
}

interface Place {
  readonly info: NameInfo;
  holders: { readonly label: string; readonly permits: number }[];
  queue: Ticket[];
}

/**
 * Who can never go on, by the labels of holders. Whoever waits for nothing will give back what it
 * holds, and then those in front of the queues go on, and so forth: who is left at the end is stuck.
 * That is right for readers and permits too, where a circle alone proves nothing.
 */
export function findDeadlocks(infos: readonly NameInfo[]): readonly Deadlock[] {
  const places = infos.map((info) => ({
    info,
    // What is closed by `atLeast` opens by itself.
    holders: info.holders
      .filter((one) => !one.closed)
      .map(({ holder, permits }) => ({ label: holder, permits })),
    queue: info.waiters.map(({ holder, permits, waitingMs }) => ({
      label: holder,
      permits,
      waitingMs,
    })),
  }));
  letGoOn(places);
  return circles(places);
}

/** Leaves in the places what stays stuck. */
function letGoOn(places: readonly Place[]): void {
  const waiting = new Map<string, number>();
  for (const { queue } of places) {
    for (const { label } of queue) waiting.set(label, (waiting.get(label) ?? 0) + 1);
  }
  for (let changed = true; changed; ) {
    changed = false;
    for (const place of places) {
      const staying = place.holders.filter(({ label }) => (waiting.get(label) ?? 0) > 0);
      changed ||= staying.length < place.holders.length;
      place.holders = staying;
      for (let next = place.queue[0]; next !== undefined; next = place.queue[0]) {
        if (!fits(place, next)) break;
        place.queue.shift();
        place.holders.push(next);
        waiting.set(next.label, waiting.get(next.label)! - 1);
        changed = true;
      }
    }
  }
}

/** What it holds itself is not in its way: one label may do several things at a time. */
function fits({ info, holders }: Place, { label, permits }: Ticket): boolean {
  let inUse = 0;
  for (const one of holders) if (one.label !== label) inUse += one.permits;
  return inUse + permits <= info.limit;
}

/** One circle through each who is stuck, unless it is in one already; those who merely wait behind are in none. */
function circles(places: readonly Place[]): readonly Deadlock[] {
  const found: Deadlock[] = [];
  const told = new Set<string>();
  const edges = edgesOf(places);
  for (const label of [...edges.keys()].sort()) {
    if (told.has(label)) continue;
    const circle = shortestCircle(edges, label);
    if (circle === null) continue;
    for (const { holder } of circle) told.add(holder);
    found.push(circle);
  }
  return found;
}

function edgesOf(places: readonly Place[]): Map<string, Stuck[]> {
  const holds = new Map<string, string[]>();
  for (const { info } of places) {
    for (const { holder, closed } of info.holders) {
      if (!closed) holds.set(holder, [...(holds.get(holder) ?? []), info.name]);
    }
  }
  const edges = new Map<string, Stuck[]>();
  for (const place of places) {
    const { info, holders, queue } = place;
    for (const [i, ticket] of queue.entries()) {
      const { label, waitingMs } = ticket;
      // A reader behind a writer is not kept out by the readers who hold it.
      const inTheWay = [...(fits(place, ticket) ? [] : holders), ...queue.slice(0, i)];
      const before = new Set(inTheWay.map((one) => one.label));
      before.delete(label);
      for (const blockedBy of before) {
        const stuck: Stuck = {
          holder: label,
          waitsFor: info.name,
          waitingMs,
          blockedBy,
          holds: [...new Set(holds.get(label) ?? [])],
        };
        edges.set(label, [...(edges.get(label) ?? []), stuck]);
      }
    }
  }
  return edges;
}

/** Breadth first, back to where it began. */
function shortestCircle(edges: Map<string, Stuck[]>, from: string): Deadlock | null {
  const ways: Stuck[][] = (edges.get(from) ?? []).map((edge) => [edge]);
  const seen = new Set<string>();
  for (let way = ways.shift(); way !== undefined; way = ways.shift()) {
    const { blockedBy } = way.at(-1)!;
    if (blockedBy === from) return way;
    if (seen.has(blockedBy)) continue;
    seen.add(blockedBy);
    for (const edge of edges.get(blockedBy) ?? []) ways.push([...way, edge]);
  }
  return null;
}
