/** The process of a worker: takes locks on command, and reports what it believed and when. */
import { subscribe } from "node:diagnostics_channel";
import { createInterface } from "node:readline";
import { setTimeout as sleep, setImmediate as turn } from "node:timers/promises";
import { isPromise } from "../../core/commands.js";
import { openStore } from "../../core/connect.js";
import { HoldfastError, type LeaseLostError } from "../../core/errors.js";
import type { Events } from "../../core/events.js";
import type { Lease, ReleaseResult } from "../../core/lease.js";
import { createLocksOn } from "../../core/locks.js";
import { systemRuntime } from "../../core/runtime.js";
import { type Claim, type ClaimAnswer, LOCK_LIMIT, type Store } from "../../core/store.js";
import { type Duration, parseDuration } from "../../core/validate.js";
import type { Fenced } from "../../fence/fence.js";
import type { MultiLease } from "../../primitives/multi.js";
import { slackOf } from "../../primitives/once.js";
import { delegate } from "../../testing/delegate.js";
import { MUTANTS, type Mutant } from "../../testing/mutants.js";
import { type EventOf, opFor } from "../check/history.js";
import { Counter } from "./counter.js";
import { outcomeOf } from "./outcome.js";
import {
  type Answer,
  type Answered,
  fromLine,
  type Lead,
  type Loop,
  type Names,
  type Once,
  type Options,
  type Request,
  toLine,
  type Value,
  type WorkerTask,
} from "./protocol.js";
import { block, report, say } from "./report.js";
import { machineMs } from "./time-line.js";

/** One name of an acquire: an op of the history. */
interface Part {
  readonly op: string;
  readonly name: string;
  /** Of several names: the acquire. */
  readonly together?: string;
}

/** What came of an acquire: a lease, or several as one. */
interface Taken {
  readonly parts: readonly (Part & Fenced)[];
  readonly held: Lease | MultiLease;
  release(): Promise<ReleaseResult>;
}

const task = fromLine<WorkerTask>(process.argv[2]!);
const mutant: Mutant = task.mutant === undefined ? {} : MUTANTS[task.mutant];
if (mutant.rule !== undefined || mutant.fence !== undefined) {
  throw new Error(`"${task.mutant}" is wrong in the store or the fence, and a worker's are real`);
}
const settings = { holder: task.client, namespace: "default", ...task.options };
/** By the label in the store and the name's key there: whose ticket it would be. */
const asked = new Map<string, string>();
const runtime = systemRuntime();
const store = tellingQueued(await openStore(task.url));
const locks = createLocksOn(
  mutant.runtime?.(runtime) ?? runtime,
  mutant.store?.()(store, runtime.clock) ?? store,
  settings,
);
const counter = task.resourceFile === undefined ? null : await Counter.open(task.resourceFile);
const taken = new Map<string, Taken>();
/** Who waits. */
const asking = new Map<string, readonly Part[]>();
const aborters = new Map<string, AbortController>();
let loops = 0;

/** Once the store has answered that a ticket stands, it does. */
function tellingQueued(of: Store): Store {
  const heard = (claim: Claim, answer: ClaimAnswer): ClaimAnswer => {
    const place = `${claim.holder} ${claim.names[0]}`;
    const op = answer.kind === "queued" ? asked.get(place) : undefined;
    if (op !== undefined) {
      asked.delete(place);
      report({ kind: "queued", op });
    }
    return answer;
  };
  return {
    ...delegate(of),
    claim: (claim, push) => {
      const answer = of.claim(claim, push);
      return isPromise(answer) ? answer.then((one) => heard(claim, one)) : heard(claim, answer);
    },
  };
}

/** A lease's deadline on the time line, read in one piece: a stop in between would move it. */
function deadlineOf(held: Taken["held"]): { atMs: number; untilMs: number } {
  for (;;) {
    const atMs = machineMs();
    const untilMs = atMs + held.remainingMs;
    if (untilMs === atMs || machineMs() - atMs < 0.5) return { atMs, untilMs };
  }
}

/** Several are good for as long as the first of them that ends. */
function reportRenewed({ parts, held }: Taken): void {
  const { atMs, untilMs } = deadlineOf(held);
  if (untilMs <= atMs) return;
  for (const { op } of parts) report({ kind: "renewed", op, untilMs }, atMs);
}

subscribe("holdfast:renewed", (message) => {
  const { name, token } = message as Events["renewed"];
  for (const one of taken.values()) {
    if (one.parts.some((part) => part.name === name && part.token === token)) reportRenewed(one);
  }
});

const milliseconds = (duration: Duration): number =>
  parseDuration(duration, "the duration", { min: 0, infinite: true });

const partsOf = (op: string, name: Names): readonly Part[] =>
  typeof name === "string"
    ? [{ op, name }]
    : [...new Set(name)].sort().map((one) => ({ op: opFor(op, one), name: one, together: op }));

const placeOf = (note: string | undefined, name: string): string =>
  `${settings.holder} (${note}) ${settings.namespace}:${name}`;

function reportAsked({ op, name, together }: Part, options: Options): void {
  asked.set(placeOf(options.note, name), op);
  const isWhole = options.limit === undefined && options.mode !== "shared";
  const wait = options.elected ? Number.POSITIVE_INFINITY : (options.wait ?? settings.wait);
  report({
    kind: "asked",
    op,
    client: task.client,
    name,
    permits: isWhole ? LOCK_LIMIT : (options.permits ?? 1),
    limit: options.limit ?? LOCK_LIMIT,
    ttlMs: milliseconds(options.ttl ?? settings.ttl ?? "30s"),
    waitMs: milliseconds(wait ?? "10s"),
    ...(options.maxHold === undefined ? {} : { maxHoldMs: milliseconds(options.maxHold) }),
    ...(options.atLeast === undefined ? {} : { atLeastMs: milliseconds(options.atLeast) }),
    ...(options.renew === false ? { renew: false } : {}),
    ...(together === undefined ? {} : { together }),
  });
}

function ask(op: string, parts: readonly Part[], options: Options): void {
  asking.set(op, parts);
  for (const part of parts) reportAsked(part, options);
}

/** Asks by a call that ends in a lease, or holds one in between, and tells when none came of it. */
async function askBy<T>(
  op: string,
  parts: readonly Part[],
  options: Options,
  call: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const aborter = new AbortController();
  aborters.set(op, aborter);
  ask(op, parts, options);
  try {
    return await call(aborter.signal);
  } catch (error) {
    notGranted(op, outcomeOf(error));
    throw error;
  } finally {
    asking.delete(op);
    aborters.delete(op);
    for (const { name } of parts) asked.delete(placeOf(options.note, name));
  }
}

function notGranted(op: string, outcome: EventOf<"not-granted">["outcome"]): void {
  for (const part of asking.get(op) ?? []) report({ kind: "not-granted", op: part.op, outcome });
}

async function acquire(op: string, name: Names, asWanted: Options): Promise<Taken> {
  const wanted = { note: op, ...asWanted };
  const { limit, permits, elected, ...options } = wanted;
  if (limit === undefined ? permits !== undefined : elected || typeof name !== "string") {
    throw new Error("permits are of a limit, and of one semaphore");
  }
  return askBy(op, partsOf(op, name), wanted, async (signal) => {
    if (typeof name !== "string") {
      return take(op, name, await locks.acquireAll(name, { ...options, signal }));
    }
    if (elected) {
      const election = locks.election(name, options);
      const resign = async (): Promise<ReleaseResult> => (await election.resign()) ?? "lost";
      return take(op, name, await election.campaign({ signal }), resign);
    }
    if (limit === undefined) {
      return take(op, name, await locks.acquire(name, { ...options, signal }));
    }
    const semaphore = locks.semaphore(name, { permits: limit });
    return take(op, name, await semaphore.acquire({ ...options, permits, signal }));
  });
}

/** From here on it believes that it holds. */
function take(op: string, name: Names, held: Taken["held"], release = () => held.release()): Taken {
  const parts = partsOf(op, name).map((part) => {
    const { token, floor } = "of" in held ? held.of(part.name) : held;
    return { ...part, token, floor };
  });
  const one = { parts, held, release };
  asking.delete(op);
  taken.set(op, one);
  const { atMs, untilMs } = deadlineOf(held);
  for (const { op, token, floor } of parts) {
    report({ kind: "granted", op, token, floor, untilMs }, atMs);
  }
  const { signal } = held;
  const lost = (): void => {
    const { reason, lockName } = signal.reason as LeaseLostError;
    for (const { op, name } of parts) {
      report({ kind: "lost", op, reason: name === lockName ? reason : "together" });
    }
  };
  if (signal.aborted) lost();
  else signal.addEventListener("abort", lost, { once: true });
  return one;
}

function takenBy(op: string): Taken {
  const one = taken.get(op);
  if (one === undefined) throw new Error(`${op} has no lease`);
  return one;
}

async function release(op: string): Promise<ReleaseResult> {
  const { parts, release } = takenBy(op);
  for (const { op } of parts) report({ kind: "releasing", op });
  const result = await release();
  taken.delete(op);
  for (const { op } of parts) report({ kind: "released", op, result });
  return result;
}

async function renew(op: string, ttlMs: number): Promise<void> {
  const one = takenBy(op);
  const renewing = one.held.renew(ttlMs);
  // A shorter one counts from the call.
  reportRenewed(one);
  await renewing;
}

function look(op: string): boolean {
  const { parts, held } = takenBy(op);
  const atMs = machineMs();
  let isHeld = true;
  try {
    held.assertHeld();
  } catch {
    isHeld = false;
  }
  for (const { op } of parts) report({ kind: "looked", op, held: isHeld }, atMs);
  return isHeld;
}

/**
 * As the protocol of the fence has it, and without asking whether it still holds: that is the
 * fence's business. A reader shows its token again instead of writing; of several names the first
 * is the resource's.
 */
async function write(op: string, pauseMs: number): Promise<boolean> {
  if (counter === null) throw new Error("the worker was started without a resource");
  const { parts, held } = takenBy(op);
  const { op: partOp, token, floor } = parts[0]!;
  const about = { op: partOp, resource: "counter", token, floor };
  const enter = async (): Promise<boolean> => {
    const entered = await counter.enter({ token, floor });
    report({ kind: "entered", ...about, ...entered });
    return entered.accepted;
  };
  if (!(await enter())) return false;
  const read = await counter.read();
  await sleep(pauseMs);
  if (held.mode === "shared") return enter();
  const written = await counter.write({ token, floor }, read + 1);
  report({ kind: "wrote", ...about, ...written, read, value: read + 1 });
  return written.accepted;
}

async function loop(wanted: Loop): Promise<number> {
  const { name, holdMs, options = {}, writes = false } = wanted;
  const { forMs = Number.POSITIVE_INFINITY, rounds = Number.POSITIVE_INFINITY } = wanted;
  const untilMs = performance.now() + forMs;
  const number = ++loops;
  let granted = 0;
  for (let i = 0; i < rounds && performance.now() < untilMs; i++) {
    const op = `${task.client}.loop${number}.${i}`;
    try {
      await acquire(op, name, options);
    } catch {
      // Reported; a store that is down is asked again in a moment.
      await sleep(10);
      continue;
    }
    granted++;
    if (writes) await write(op, holdMs);
    else await (holdMs > 0 ? sleep(holdMs) : turn());
    look(op);
    await release(op);
  }
  return granted;
}

/** Work in the hands of something that releases the lease by itself, afterwards. */
async function under(op: string, name: string, lease: Lease, work: () => Promise<unknown>) {
  take(op, name, lease);
  try {
    await work();
    look(op);
  } finally {
    report({ kind: "releasing", op });
    taken.delete(op);
  }
}

/** How many terms it had; each is an op of its own. */
async function lead(op: string, { name, pauseMs, options = {} }: Lead): Promise<number> {
  const wanted = { note: op, ...options };
  const election = locks.election(name, wanted);
  const campaign = { ...wanted, elected: true };
  let terms = 0;
  const nextTerm = (): readonly Part[] => [{ op: `${op}.${terms + 1}`, name }];
  const serve = async (lease: Lease, stop: AbortSignal): Promise<void> => {
    const own = `${op}.${++terms}`;
    asking.delete(op);
    await under(own, name, lease, async () => {
      while (!stop.aborted) {
        // Once it is refused another one leads, and its own loss is about to be told.
        if (!(await write(own, pauseMs))) await aborted(stop);
      }
    });
    if (lease.signal.aborted) ask(op, nextTerm(), campaign);
  };
  await askBy(op, nextTerm(), campaign, async (signal) => {
    await election.runAsLeader(serve, { signal }).catch((error) => {
      if (!signal.aborted) throw error;
      notGranted(op, "aborted");
    });
  });
  return terms;
}

const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });

async function once(op: string, { name, workMs, ...options }: Once): Promise<boolean> {
  const { every, slack, ...rest } = options;
  const everyMs = milliseconds(every);
  const atLeast = everyMs - (slack === undefined ? slackOf(everyMs) : milliseconds(slack));
  const asks = { ...rest, note: op, wait: 0, atLeast };
  return askBy(op, partsOf(op, name), asks, async (signal) => {
    const { ran } = await locks.once(name, { ...options, note: op, signal }, (lease) =>
      under(op, name, lease, () => sleep(workMs)),
    );
    notGranted(op, "busy");
    return ran;
  });
}

/** The pipes to the one who asks; opened here, because a library that only looks at one opens it too. */
const STDIO = [process.stdin, process.stdout, process.stderr].length;

/** What would keep the process alive, but for them. */
async function close(): Promise<void> {
  await locks.close();
  counter?.close();
  const left = process.getActiveResourcesInfo();
  report({
    kind: "left",
    client: task.client,
    waiters: asking.size,
    timers: left.filter((one) => one === "Timeout").length,
    sockets: left.filter((one) => /^(TCP|Pipe)/.test(one)).length - STDIO,
  });
}

async function perform(request: Request): Promise<Value | undefined> {
  switch (request.do) {
    case "acquire": {
      const { parts } = await acquire(request.op, request.name, request.options);
      return parts.map(({ name, token }) => [name, String(token)]);
    }
    case "release":
      return release(request.op);
    case "look":
      return look(request.op);
    case "renew":
      await renew(request.op, request.ttlMs);
      return undefined;
    case "abort":
      for (const { op } of asking.get(request.op) ?? []) report({ kind: "aborting", op });
      aborters.get(request.op)?.abort();
      return undefined;
    case "write":
      return write(request.op, request.pauseMs);
    case "loop":
      return loop(request.loop);
    case "lead":
      return lead(request.op, request.lead);
    case "once":
      return once(request.op, request.once);
    case "forceRelease": {
      const holders = await locks.forceRelease(request.name, { why: request.why });
      return holders.map(({ token }) => String(token));
    }
    case "block":
      block(request.forMs);
      return undefined;
    case "close":
      await close();
      return undefined;
  }
}

function failed(error: unknown): Answer {
  const code = HoldfastError.is(error) ? error.code : "ERROR";
  return { ok: false, code, message: error instanceof Error ? error.message : String(error) };
}

const answer = (id: number, answer: Answer): void => say(toLine({ id, answer } satisfies Answered));

answer(0, { ok: true });
for await (const line of createInterface({ input: process.stdin })) {
  const { id, ...request } = fromLine<Request & { id: number }>(line);
  perform(request as Request)
    .then((value): Answer => (value === undefined ? { ok: true } : { ok: true, value }), failed)
    .then((said) => answer(id, said));
}
await locks.close();
process.exit(0);
