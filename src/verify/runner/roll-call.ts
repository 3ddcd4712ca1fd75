import { setTimeout as sleep } from "node:timers/promises";
import type { EventOf, History } from "../check/history.js";
import { machineMs, type TimeLine } from "../traffic/time-line.js";
import type { Member } from "./crew.js";
import type { Plan } from "./plan.js";

/**
 * Longer than any handover should take, but shorter than a third of the ttl, when a waiter that got
 * no push would find its grant.
 */
const HANDOVER_MS = 1_500;
const TTL_MS = 6_000;
const WAIT_MS = 15_000;
/** A lease is kept for this many ttls, so it must be renewed. */
const KEPT = 1.6;
/** A machine that stands still for a moment may cost one lease, but not several in a row. */
const TRIES = 3;
/** A worker that stood still for this share of the ttl may lose its lease, which then says nothing about the library. */
const STALLED_SHARE = 1 / 6;
const MOST_TRIES = 8;

/** The result of a roll call. `outages`: how many of the failures were reported as an outage of the store. */
export interface RollCall {
  readonly asked: number;
  readonly failures: readonly string[];
  readonly outages: number;
}

/**
 * When all faults are healed, every worker takes every lock once, one after another, and keeps a
 * name of its own for longer than its ttl. This finds a library that grants, releases, renews or
 * notifies nothing, which breaks no rule of safety.
 */
export async function callTheRoll(
  members: readonly Member[],
  plan: Plan,
  {
    pace,
    ttlMs,
    timeLine,
  }: { readonly pace: number; readonly ttlMs: number; readonly timeLine: TimeLine },
): Promise<RollCall> {
  const running = members.filter((member) => member.isRunning);
  const names = plan.names
    .filter(({ permits, onceEveryMs }) => permits === 0 && onceEveryMs === undefined)
    .map(({ name }) => name);
  const failures: string[] = [];
  let asked = 0;
  let outages = 0;
  const call = async (client: string, name: string, act: () => Promise<void>): Promise<void> => {
    asked++;
    await act().catch((error: Error & { code?: string }) => {
      if (error.code === "STORE_UNAVAILABLE") outages++;
      failures.push(
        `after all faults were healed, ${client} could not use "${name}": ${error.message}`,
      );
    });
  };
  await Promise.all(
    running.flatMap(({ client, worker }) => [
      call(client, ownNameOf(client), async () => {
        const ttl = onlyTtlOf(plan, client) ?? Math.round(ttlMs * pace);
        const own = ownNameOf(client);
        let losses = 0;
        for (let i = 1; i <= MOST_TRIES && losses < TRIES; i++) {
          const options = { ttl, wait: WAIT_MS * pace };
          const { op } = await worker.acquire(own, options, `${opOf(plan, client, own)}.${i}`);
          const fromMs = machineMs();
          await sleep(KEPT * ttl);
          const isKept = await worker.look(op);
          await worker.release(op);
          if (isKept) return;
          if (stalledMs(timeLine.events, client, fromMs) < ttl * STALLED_SHARE) losses++;
        }
        if (losses === TRIES) throw new Error(`its lease was lost ${TRIES} times in a row`);
        asked--;
      }),
      ...names.map((name) =>
        call(client, name, async () => {
          const ttl = onlyTtlOf(plan, client) ?? Math.round(TTL_MS * pace);
          const options = { ttl, wait: Math.round(WAIT_MS * pace) };
          const { op } = await worker.acquire(name, options, opOf(plan, client, name));
          await sleep(10);
          await worker.release(op);
        }),
      ),
    ]),
  );
  return { asked, failures, outages };
}

/** How long the client's process has stood still since then. */
function stalledMs(events: History, client: string, sinceMs: number): number {
  let pausedAtMs = sinceMs;
  let sumMs = 0;
  for (const event of events) {
    if (event.kind !== "paused" && event.kind !== "resumed") continue;
    if (event.client !== client || !event.stalled || event.atMs < sinceMs) continue;
    if (event.kind === "paused") pausedAtMs = event.atMs;
    else [sumMs, pausedAtMs] = [sumMs + event.atMs - pausedAtMs, sinceMs];
  }
  return sumMs;
}

/** Handovers of the roll call that took too long, if most of them did: the machine may have delayed a single one. */
export function slowHandovers(
  history: History,
  plan: Plan,
  {
    pace,
    slackMs,
    handoverMs = HANDOVER_MS,
  }: { readonly pace: number; readonly slackMs: number; readonly handoverMs?: number | undefined },
): readonly string[] {
  const mostMs = handoverMs * pace + 2 * slackMs;
  let handovers = 0;
  const slow = plan.names.flatMap(({ name }) => {
    const ops = plan.workers.map(({ client }) => opOf(plan, client, name));
    const of = <K extends "asked" | "granted" | "releasing">(kind: K): EventOf<K>[] =>
      history.filter(
        (event): event is EventOf<K> =>
          event.kind === kind && "op" in event && ops.includes(event.op),
      );
    const [asked, releases] = [of("asked"), of("releasing")];
    const grants = of("granted").sort((a, b) => a.atMs - b.atMs);
    return grants.slice(1).flatMap((granted, i) => {
      const freed = releases.find(({ op }) => op === grants[i]!.op);
      const own = asked.find(({ op }) => op === granted.op);
      if (freed === undefined || own === undefined) return [];
      handovers++;
      const tookMs = granted.atMs - Math.max(freed.atMs, own.atMs);
      if (tookMs <= mostMs) return [];
      return [
        `after all faults were healed, "${name}" took ${Math.round(tookMs)} ms from ${freed.op}'s release to ${granted.op}`,
      ];
    });
  });
  return slow.length > handovers / 2 ? slow : [];
}

/** The ttl of all leases of the worker, where the store refuses a ttl per lease. */
const onlyTtlOf = ({ workers }: Plan, client: string): number | undefined =>
  workers.find((one) => one.client === client)?.ttlMs;

export const ownNameOf = (client: string): string => `own-${client}`;
const opOf = ({ seed }: Plan, client: string, name: string): string =>
  `${seed}.call.${client}.${name}`;
