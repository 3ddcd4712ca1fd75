import { expect } from "vitest";
import { LOCK_LIMIT } from "../../../src/core/store.js";
import {
  LIMITS,
  type Limits,
  RULES,
  type RuleId,
  type Verdict,
} from "../../../src/verify/check/check.js";
import type { Event, EventOf, History } from "../../../src/verify/check/history.js";

/** Tight limits, so that histories are short. */
export const TIGHT: Limits = {
  ...LIMITS,
  lossMs: 10,
  wakeMs: 20,
  recordMs: 0,
  orphanMs: 10,
  freeMs: 10,
  healMs: 50,
  endMs: 10,
  commandMs: 30,
};

export const ALONE = { permits: LOCK_LIMIT, limit: LOCK_LIMIT };
export const SHARED = { permits: 1, limit: LOCK_LIMIT };
export const some = (permits: number, limit: number) => ({ permits, limit });

type Asked = Partial<Omit<EventOf<"asked">, "kind" | "atMs" | "op">>;

/** A claim by a client of the op's own name, exclusive, with a ttl of 100 ms and a wait of 1 s. */
export const asked = (atMs: number, op: string, more: Asked = {}): Event => ({
  kind: "asked",
  atMs,
  op,
  client: op,
  name: "name",
  ...ALONE,
  ttlMs: 100,
  waitMs: 1_000,
  ...more,
});
export const queued = (atMs: number, op: string): Event => ({ kind: "queued", atMs, op });
/** The reply to a claim or to a renewal of the ticket, which was sent at `sentAtMs`. */
export const confirmed = (atMs: number, op: string, sentAtMs = atMs - 1): Event => ({
  kind: "queued",
  atMs,
  op,
  sentAtMs,
});
export const aborting = (atMs: number, op: string): Event => ({ kind: "aborting", atMs, op });
export const notGranted = (
  atMs: number,
  op: string,
  outcome: EventOf<"not-granted">["outcome"] = "timeout",
): Event => ({ kind: "not-granted", atMs, op, outcome });
export const made = (
  atMs: number,
  op: string,
  token: number,
  more: { limit?: number } = {},
): Event => ({
  kind: "made",
  atMs,
  op,
  token: BigInt(token),
  ...more,
});
export const granted = (atMs: number, op: string, token: number, untilMs: number): Event => ({
  kind: "granted",
  atMs,
  op,
  token: BigInt(token),
  floor: BigInt(token),
  untilMs,
});
export const kept = (
  atMs: number,
  op: string,
  untilMs: number,
  more: Partial<EventOf<"kept">> = {},
): Event => ({
  kind: "kept",
  atMs,
  op,
  untilMs,
  ...more,
});
export const renewed = (atMs: number, op: string, untilMs: number): Event => ({
  kind: "renewed",
  atMs,
  op,
  untilMs,
});
export const looked = (atMs: number, op: string, held = true): Event => ({
  kind: "looked",
  atMs,
  op,
  held,
});
export const lost = (atMs: number, op: string, reason = "expired"): Event => ({
  kind: "lost",
  atMs,
  op,
  reason,
});
export const releasing = (atMs: number, op: string): Event => ({ kind: "releasing", atMs, op });
export const released = (
  atMs: number,
  op: string,
  result: EventOf<"released">["result"] = "released",
): Event => ({ kind: "released", atMs, op, result });
export const entered = (
  step: number,
  op: string,
  token: number,
  more: Partial<EventOf<"entered">> = {},
): Event => ({
  kind: "entered",
  atMs: step,
  op,
  resource: "file",
  step,
  token: BigInt(token),
  floor: BigInt(token),
  accepted: true,
  ...more,
});
export const wrote = (
  step: number,
  op: string,
  token: number,
  [read, value]: readonly [number, number],
  more: Partial<EventOf<"wrote">> = {},
): Event => ({
  kind: "wrote",
  atMs: step,
  op,
  resource: "file",
  step,
  token: BigInt(token),
  floor: BigInt(token),
  accepted: true,
  read,
  value,
  ...more,
});
export const seen = (
  sinceMs: number,
  {
    holders = [],
    waiters = [],
    closed,
  }: {
    holders?: readonly string[];
    waiters?: readonly string[];
    closed?: readonly string[];
  },
): Event => ({
  kind: "seen",
  atMs: sinceMs + 1,
  sinceMs,
  name: "name",
  holders: holders.map((op) => ({ op, token: 1n })),
  waiters,
  ...(closed === undefined ? {} : { closed }),
});
export const revoked = (atMs: number, op: string, token: number, sinceMs = atMs): Event => ({
  kind: "revoked",
  atMs,
  sinceMs,
  op,
  token: BigInt(token),
});
export const resized = (atMs: number, limit: number, sinceMs = atMs): Event => ({
  kind: "resized",
  atMs,
  sinceMs,
  name: "name",
  limit,
});
export const clockSet = (atMs: number, byMs: number): Event => ({ kind: "clock-set", atMs, byMs });
export const paused = (atMs: number, client: string): Event => ({ kind: "paused", atMs, client });
export const frozen = (atMs: number, client: string): Event => ({
  kind: "paused",
  atMs,
  client,
  frozen: true,
});
export const resumed = (atMs: number, client: string): Event => ({ kind: "resumed", atMs, client });
export const killed = (atMs: number, client: string): Event => ({ kind: "killed", atMs, client });
export const injected = (
  atMs: number,
  more: { sparesStore?: boolean; name?: string } = {},
): Event => ({
  kind: "injected",
  atMs,
  fault: "fault",
  ...more,
});
export const healed = (atMs: number): Event => ({ kind: "healed", atMs, fault: "fault" });
export const counted = (
  atMs: number,
  waiters: number,
  handovers: number,
  commands: number,
): Event => ({ kind: "counted", atMs, waiters, handovers, commands });
/** Only the time passes. */
export const later = (atMs: number): Event => left(atMs, 0);
export const left = (atMs: number, timers: number, client = "other"): Event => ({
  kind: "left",
  atMs,
  client,
  waiters: 0,
  timers,
  sockets: 0,
});

export const judge = (rule: RuleId, history: History, limits: Partial<Limits> = {}): Verdict =>
  RULES[rule].check(history, { ...TIGHT, ...limits });

/** The rule holds, and something was compared. */
export function ok(rule: RuleId, history: History, limits: Partial<Limits> = {}): void {
  const verdict = judge(rule, history, limits);
  expect(verdict).toMatchObject({ rule, verdict: "ok", evidence: [] });
  expect(verdict.checked).toBeGreaterThan(0);
}

export function unknown(
  rule: RuleId,
  history: History,
  why: RegExp,
  limits: Partial<Limits> = {},
): void {
  const verdict = judge(rule, history, limits);
  expect(verdict).toMatchObject({ rule, verdict: "unknown" });
  expect(verdict.why).toMatch(why);
}

/** The rule is violated, and exactly the events at these places of the history are the evidence. */
export function violated(
  rule: RuleId,
  history: History,
  places: readonly number[],
  why: RegExp,
  limits: Partial<Limits> = {},
): void {
  const verdict = judge(rule, history, limits);
  expect(verdict).toMatchObject({ rule, verdict: "violated" });
  expect(verdict.evidence.map((event) => history.indexOf(event))).toEqual(places);
  expect(verdict.why).toMatch(why);
  expectShortest(verdict, limits);
}

/**
 * The evidence suffices, and all of it is needed. Renewals are an exception: without its last one a
 * lease would have ended earlier, which is not what happened.
 */
export function expectShortest({ rule, evidence }: Verdict, limits: Partial<Limits> = {}): void {
  expect(judge(rule, evidence, limits).verdict).toBe("violated");
  for (const [i, { kind }] of evidence.entries()) {
    if (kind === "renewed") continue;
    expect(judge(rule, evidence.toSpliced(i, 1), limits).verdict, `without ${kind}`).not.toBe(
      "violated",
    );
  }
}
