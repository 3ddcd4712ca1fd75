/** The process of a worker: takes locks on command, and reports what it believed and when. */
import { subscribe } from "node:diagnostics_channel";
import { writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { openStore } from "../../core/connect.js";
import { HoldfastError, type LeaseLostError } from "../../core/errors.js";
import type { Events } from "../../core/events.js";
import type { Lease } from "../../core/lease.js";
import { createLocksOn } from "../../core/locks.js";
import { systemRuntime } from "../../core/runtime.js";
import { LOCK_LIMIT } from "../../core/store.js";
import { type Duration, parseDuration } from "../../core/validate.js";
import { MUTANTS, type Mutant } from "../../testing/mutants.js";
import { encodeEvent } from "../check/encode.js";
import type { Event } from "../check/history.js";
import { Counter } from "./counter.js";
import { outcomeOf } from "./outcome.js";
import {
  type Answer,
  type Answered,
  fromLine,
  type Loop,
  type Options,
  type Request,
  toLine,
  type WorkerTask,
} from "./protocol.js";
import { type EventWithoutTime, machineMs } from "./time-line.js";

const task = fromLine<WorkerTask>(process.argv[2]!);
const mutant: Mutant = task.mutant === undefined ? {} : MUTANTS[task.mutant];
if (mutant.rule !== undefined || mutant.fence !== undefined) {
  throw new Error(`"${task.mutant}" is wrong in the store or the fence, and a worker's are real`);
}
const runtime = systemRuntime();
const store = await openStore(task.url);
const locks = createLocksOn(
  mutant.runtime?.(runtime) ?? runtime,
  mutant.store?.()(store, runtime.clock) ?? store,
  { holder: task.client, ...task.options },
);
const counter = task.resourceFile === undefined ? null : await Counter.open(task.resourceFile);
const leases = new Map<string, Lease>();
const aborters = new Map<string, AbortController>();
let loops = 0;

/**
 * At once, and not by the event loop: what is stopped or killed next must have spoken before. The
 * pipe does not block: while the one who reads is slow, it is full.
 */
function say(line: string): void {
  let rest = Buffer.from(line);
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(1, rest));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EAGAIN") throw error;
      block(1);
    }
  }
}

function report(event: EventWithoutTime, atMs = machineMs()): void {
  say(`${encodeEvent({ atMs, ...event } as Event)}\n`);
}

function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/** A lease's deadline on the time line, read in one piece: a stop in between would move it. */
function deadlineOf(lease: Lease): { atMs: number; untilMs: number } {
  for (;;) {
    const atMs = machineMs();
    const untilMs = atMs + lease.remainingMs;
    if (untilMs === atMs || machineMs() - atMs < 0.5) return { atMs, untilMs };
  }
}

function reportRenewed(op: string, lease: Lease): void {
  const { atMs, untilMs } = deadlineOf(lease);
  if (untilMs > atMs) report({ kind: "renewed", op, untilMs }, atMs);
}

subscribe("holdfast:renewed", (message) => {
  const { name, token } = message as Events["renewed"];
  for (const [op, lease] of leases) {
    if (lease.name !== name || lease.token !== token) continue;
    reportRenewed(op, lease);
  }
});

const milliseconds = (duration: Duration): number =>
  parseDuration(duration, "the duration", { min: 0, infinite: true });

async function acquire(op: string, name: string, options: Options): Promise<Lease> {
  const aborter = new AbortController();
  aborters.set(op, aborter);
  report({
    kind: "asked",
    op,
    client: task.client,
    name,
    permits: options.mode === "shared" ? 1 : LOCK_LIMIT,
    limit: LOCK_LIMIT,
    ttlMs: milliseconds(options.ttl ?? task.options.ttl ?? "30s"),
    waitMs: milliseconds(options.wait ?? task.options.wait ?? "10s"),
  });
  let lease: Lease;
  try {
    lease = await locks.acquire(name, { ...options, note: op, signal: aborter.signal });
  } catch (error) {
    report({ kind: "not-granted", op, outcome: outcomeOf(error) });
    throw error;
  } finally {
    aborters.delete(op);
  }
  leases.set(op, lease);
  const { token, floor } = lease;
  const { atMs, untilMs } = deadlineOf(lease);
  report({ kind: "granted", op, token, floor, untilMs }, atMs);
  const { signal } = lease;
  const lost = (): void => {
    report({ kind: "lost", op, reason: (signal.reason as LeaseLostError).reason });
  };
  if (signal.aborted) lost();
  else signal.addEventListener("abort", lost, { once: true });
  return lease;
}

function leaseOf(op: string): Lease {
  const lease = leases.get(op);
  if (lease === undefined) throw new Error(`${op} has no lease`);
  return lease;
}

async function release(op: string): Promise<string> {
  const lease = leaseOf(op);
  report({ kind: "releasing", op });
  const result = await lease.release();
  leases.delete(op);
  report({ kind: "released", op, result });
  return result;
}

async function renew(op: string, ttlMs: number): Promise<void> {
  const lease = leaseOf(op);
  const renewing = lease.renew(ttlMs);
  // A shorter one counts from the call.
  reportRenewed(op, lease);
  await renewing;
}

function look(op: string): boolean {
  const lease = leaseOf(op);
  const atMs = machineMs();
  let held = true;
  try {
    lease.assertHeld();
  } catch {
    held = false;
  }
  report({ kind: "looked", op, held }, atMs);
  return held;
}

/** As the protocol of the fence has it, and without asking whether it still holds: that is the fence's business. */
async function write(op: string, pauseMs: number): Promise<boolean> {
  if (counter === null) throw new Error("the worker was started without a resource");
  const lease = leaseOf(op);
  const about = { op, resource: "counter", token: lease.token, floor: lease.floor };
  const entered = await counter.enter(lease);
  report({ kind: "entered", ...about, ...entered });
  if (!entered.accepted) return false;
  const read = await counter.read();
  await sleep(pauseMs);
  const written = await counter.write(lease, read + 1);
  report({ kind: "wrote", ...about, ...written, read, value: read + 1 });
  return written.accepted;
}

async function loop({ name, forMs, holdMs, options = {}, writes = false }: Loop): Promise<number> {
  const untilMs = performance.now() + forMs;
  const number = ++loops;
  let granted = 0;
  for (let i = 0; performance.now() < untilMs; i++) {
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
    else await sleep(holdMs);
    look(op);
    await release(op);
  }
  return granted;
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
    waiters: aborters.size,
    timers: left.filter((one) => one === "Timeout").length,
    sockets: left.filter((one) => /^(TCP|Pipe)/.test(one)).length - STDIO,
  });
}

async function perform(request: Request): Promise<string | number | boolean | undefined> {
  switch (request.do) {
    case "acquire":
      return String((await acquire(request.op, request.name, request.options)).token);
    case "release":
      return release(request.op);
    case "look":
      return look(request.op);
    case "renew":
      await renew(request.op, request.ttlMs);
      return undefined;
    case "abort":
      report({ kind: "aborting", op: request.op });
      aborters.get(request.op)?.abort();
      return undefined;
    case "write":
      return write(request.op, request.pauseMs);
    case "loop":
      return loop(request.loop);
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
