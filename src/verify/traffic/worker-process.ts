/** The process of a worker: takes locks on command, and reports what it believed and when. */
import { subscribe } from "node:diagnostics_channel";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { HoldfastError } from "../../core/errors.js";
import type { Events } from "../../core/events.js";
import { systemRuntime } from "../../core/runtime.js";
import { createLocksOn, type Locks } from "../../locks.js";
import { MUTANTS, type Mutant } from "../../testing/mutants.js";
import { openConnection } from "./connections.js";
import { Counter } from "./counter.js";
import { lead } from "./operations/lead.js";
import { loop } from "./operations/loop.js";
import { once } from "./operations/once.js";
import { Performer } from "./performer.js";
import { perform as performProgram } from "./program.js";
import {
  type Answer,
  type Answered,
  fromLine,
  type Request,
  toLine,
  type Value,
  type WorkerTask,
} from "./protocol.js";
import { openRegister } from "./registers/open.js";
import type { Register } from "./registers/register.js";
import { block, report, say } from "./report.js";
import { Stalls } from "./stalls.js";

// Ctrl-C at a terminal reaches all processes there; the process that started this worker ends it.
process.on("SIGINT", () => {});
/** The first line of the input is the task. */
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const first = await input.next();
if (first.done) process.exit(0);
const task = fromLine<WorkerTask>(first.value);
const mutant: Mutant = task.mutant === undefined ? {} : MUTANTS[task.mutant];
if (mutant.rule !== undefined || mutant.fence !== undefined) {
  throw new Error(
    `a worker can't use the mutant "${task.mutant}": it changes the store or the fence, and a worker's are real`,
  );
}
const { holder = task.client, namespace = "default" } = task.options;
const settings = { ...task.options, holder, namespace };
const register = await openRegisterOf(task);
const performer = new Performer(task.client, settings, register);
subscribe("holdfast:renewed", (message) => performer.renewed(message as Events["renewed"]));

const runtime = systemRuntime();
const connections = await Promise.all(
  (task.connections ?? [{ locks: 1 }]).map(async (one) => ({
    count: one.locks,
    ...(await openConnection({ url: task.url, ...one })),
  })),
);
/** A function for each `Locks` that opens it. */
const opens = connections.flatMap(({ count, store }) =>
  Array.from({ length: count }, () => async (): Promise<Locks> => {
    const reporting = performer.reportsQueued(await store());
    return createLocksOn(
      mutant.runtime?.(runtime) ?? runtime,
      mutant.store?.()(reporting, runtime.clock) ?? reporting,
      settings,
    );
  }),
);
const all: Locks[] = [];
for (const open of opens) all.push(await open());
const locks = (): Locks => all[0]!;

async function openRegisterOf({ register, resourceFile }: WorkerTask): Promise<Register | null> {
  if (register !== undefined) return openRegister(register);
  return resourceFile === undefined ? null : Counter.open(resourceFile);
}

/** Replaces a `Locks` before it is closed, so that the next operation uses the new one. */
async function reopen(index: number): Promise<void> {
  const old = all[index]!;
  // A store that is down can't be opened.
  const next = await opens[index]!().catch(() => null);
  if (next === null) return;
  all[index] = next;
  await performer.close(old);
}

const finishing = new AbortController();
const locksInUse = {
  at: (index: number): Locks => all[index]!,
  reopen,
  finishing: finishing.signal,
};

const isShared = task.connections?.some(({ locks, library }) => locks > 1 || library) ?? false;
const CLOSES_MS = 4_000;

/**
 * The pipes to the parent process. They are opened here, because a library that only reads a
 * property of one would open it, too.
 */
const STDIO = [process.stdin, process.stdout, process.stderr].length;

/** The number of timers and sockets, other than the pipes, that would keep the process alive. */
function leftOpen(): { timers: number; sockets: number } {
  const left = process.getActiveResourcesInfo();
  return {
    timers: left.filter((one) => one === "Timeout").length,
    sockets: left.filter((one) => /^(TCP|Pipe)/.test(one)).length - STDIO,
  };
}

async function close(): Promise<void> {
  await Promise.all(all.map((one) => one.close()));
  await Promise.all(connections.map((one) => one.close()));
  await register?.close();
  stalls?.stop();
  // A client that an application opened also waits for the server to close its socket.
  const isOpen = (): boolean => leftOpen().sockets + leftOpen().timers > 0;
  for (let i = 0; isShared && isOpen() && i < CLOSES_MS / 20; i++) await sleep(20);
  report({ kind: "left", client: task.client, waiters: performer.waiting, ...leftOpen() });
}

async function perform(request: Request): Promise<Value | undefined> {
  switch (request.do) {
    case "acquire":
      return performer.acquire(locks(), request.op, request.name, request.options);
    case "release":
      return performer.release(request.op);
    case "look":
      return performer.look(request.op);
    case "renew":
      await performer.renew(request.op, request.ttlMs);
      return undefined;
    case "abort":
      performer.abort(request.op);
      return undefined;
    case "write":
      return performer.write(request.op, request.pauseMs);
    case "loop":
      return loop(performer, locks(), request.loop);
    case "lead":
      return lead(performer, locks(), request.op, request.lead);
    case "once":
      return once(performer, locks(), request.op, request.once);
    case "forceRelease": {
      const holders = await locks().forceRelease(request.name, { why: request.why });
      return holders.map(({ token }) => String(token));
    }
    case "block":
      block(request.forMs);
      return undefined;
    case "program":
      return performProgram(request.program, performer, locksInUse);
    case "finish":
      finishing.abort();
      performer.abortAll();
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

// Only now, because loading code keeps the event loop busy.
const stalls = task.reportsStalls ? new Stalls(task.client) : null;
answer(0, { ok: true });
for await (const line of input) {
  const { id, ...request } = fromLine<Request & { id: number }>(line);
  perform(request as Request)
    .then((value): Answer => (value === undefined ? { ok: true } : { ok: true, value }), failed)
    .then((said) => answer(id, said));
}
await Promise.all(all.map((one) => one.close()));
process.exit(0);
