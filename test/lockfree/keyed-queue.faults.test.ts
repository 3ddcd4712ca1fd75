import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { connect, type Locks, type LocksOptions } from "../../src/index.js";
import type { KeyedQueueOptions } from "../../src/lockfree/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { describeWith } from "../support/needs.js";
import { freshFile } from "../support/sqlite.js";
import { until } from "../support/worker.js";
import { Child } from "./child.js";

/** The work of a process of `queuer.mjs`. */
interface Plan {
  readonly keys: readonly string[];
  readonly tasks: number;
  readonly ms: number;
  readonly hold?: number;
  readonly options?: KeyedQueueOptions;
  readonly locks?: LocksOptions;
}

interface Note {
  readonly what: "begin" | "end";
  readonly who: string;
  readonly key: string;
  readonly number: number;
  readonly token: string;
}

/** A file to which all processes append: its order is that of their writes, and nothing fences it. */
class Register {
  readonly file: string;

  constructor() {
    const folder = mkdtempSync(join(tmpdir(), "holdfast-register-"));
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
    this.file = join(folder, "register");
  }

  notes(): Note[] {
    if (!existsSync(this.file)) return [];
    const lines = readFileSync(this.file, "utf8").split("\n");
    // The last one is empty, or half of a line that is being written.
    return lines.slice(0, -1).map((line) => JSON.parse(line));
  }

  of(who: string, what: Note["what"] = "begin"): Note[] {
    return this.notes().filter((note) => note.who === who && note.what === what);
  }

  begins = (who: string, number: number): Promise<void> =>
    until(`${who} begins task ${number}`, () =>
      this.of(who).some((note) => note.number === number),
    );
}

/** One at a time for each key; tokens never fall; the tasks of a process begin in order, none of them twice. */
function expectInOrder(notes: readonly Note[], cutOff: readonly string[] = []): void {
  const running = new Map<string, Note>();
  const tokens = new Map<string, bigint>();
  const numbers = new Map<string, number>();
  for (const note of notes) {
    const { what, who, key, number, token } = note;
    const before = running.get(key);
    if (what === "end") {
      expect(before, "a task ends while another runs").toEqual({ ...note, what: "begin" });
      running.delete(key);
      continue;
    }
    if (before !== undefined) {
      // Killed or paused in the middle: it is lost, and its token is over.
      expect(cutOff, `${who} begins while ${before.who} runs`).toContain(before.who);
      expect(BigInt(token)).toBeGreaterThan(BigInt(before.token));
    }
    expect(BigInt(token)).toBeGreaterThanOrEqual(tokens.get(key) ?? 0n);
    expect(number).toBeGreaterThan(numbers.get(`${who} ${key}`) ?? -1);
    running.set(key, note);
    tokens.set(key, BigInt(token));
    numbers.set(`${who} ${key}`, number);
  }
}

/** How many tasks ran under each lease. */
function tasksOfLeases(notes: readonly Note[]): number[] {
  const counts = new Map<string, number>();
  for (const { what, key, token } of notes) {
    const lease = `${key} ${token}`;
    if (what === "begin") counts.set(lease, (counts.get(lease) ?? 0) + 1);
  }
  return [...counts.values()];
}

const SHORT: LocksOptions = { ttl: "4s" };
/** No turn ends by its time: only the loss of the lease ends one early. */
const TURN_OF_FIVE: KeyedQueueOptions = { turnTasks: 5, turnTime: "1h" };

let namespaces = 0;

/** A namespace of its own in the store, with the processes that share it. */
function stage(url: string) {
  const register = new Register();
  const namespace = `test-${++namespaces}`;
  const start = (who: string, { locks, ...plan }: Plan): Promise<Child> => {
    const all = { ...plan, locks: { namespace, ...locks } };
    return Child.start("queuer.mjs", [url, register.file, who, JSON.stringify(all)]);
  };
  const open = async (): Promise<Locks> => {
    const locks = await connect(url, { namespace });
    onTestFinished(() => locks.close());
    return locks;
  };
  return { register, start, open };
}

function inOrderAcrossProcesses(
  urlOf: () => string,
  names: readonly string[],
  tasks: number,
): void {
  test("tasks run one at a time for each key, those of a process in the order in which they were added", async () => {
    const { register, start } = stage(urlOf());
    const plan = { keys: ["x", "y", "z"], tasks, ms: 1, options: { turnTasks: 7 } };
    const children = await Promise.all(names.map((who) => start(who, plan)));
    for (const child of children) child.go();
    const done = plan.keys.length * tasks;
    for (const child of children) expect(await child.result()).toEqual({ done });
    const notes = register.notes();
    expectInOrder(notes);
    for (const who of names) expect(register.of(who, "end").length).toBe(done);
    const counts = tasksOfLeases(notes);
    // Several tasks share a lease, and never more than the bound.
    expect(Math.max(...counts)).toBe(7);
  });
}

function acrossProcesses(urlOf: () => string): void {
  inOrderAcrossProcesses(urlOf, ["a", "b", "c", "d"], 40);

  test("a process with a long queue does not starve another one", async () => {
    const { register, start, open } = stage(urlOf());
    const locks = await open();
    const plan = { keys: ["x"], ms: 1, options: { turnTasks: 10, turnTime: "1m" } } as const;
    const long = await start("long", { ...plan, tasks: 60, hold: 25 });
    const short = await start("short", { ...plan, tasks: 5 });
    long.go();
    await register.begins("long", 25);
    short.go();
    await until("the short one waits", async () => (await locks.inspect("x"))!.waiting === 1);
    long.go();
    expect(await short.result()).toEqual({ done: 5 });
    expect(await long.result()).toEqual({ done: 60 });
    const notes = register.notes();
    expectInOrder(notes);
    // The long one ends its turn, its third of ten tasks; then the short one is next.
    const begins = notes.filter(({ what }) => what === "begin").map(({ who }) => who);
    expect(begins.slice(0, 36)).toEqual([
      ...Array(30).fill("long"),
      ...Array(5).fill("short"),
      "long",
    ]);
    expect(Math.max(...tasksOfLeases(notes))).toBe(10);
  });

  test("a turn ends after its time, although tasks wait", async () => {
    const { register, start } = stage(urlOf());
    const plan = { keys: ["x"], tasks: 20, ms: 30, options: { turnTime: 100 } };
    const children = [await start("a", plan), await start("b", plan)];
    for (const child of children) child.go();
    for (const child of children) expect(await child.result()).toEqual({ done: 20 });
    expectInOrder(register.notes());
    // The fourth begins after 90 ms at the earliest, and a fifth never.
    expect(Math.max(...tasksOfLeases(register.notes()))).toBeLessThanOrEqual(4);
  });

  test("a killed process costs its running task and one ttl, and the others go on in order", async () => {
    const { register, start } = stage(urlOf());
    const plan = { keys: ["x"], tasks: 30, ms: 1, options: TURN_OF_FIVE, locks: SHORT };
    const killed = await start("killed", { ...plan, hold: 12 });
    const others = [await start("b", plan), await start("c", plan)];
    for (const child of [killed, ...others]) child.go();
    await register.begins("killed", 12);
    killed.kill("SIGKILL");
    for (const child of others) expect(await child.result()).toEqual({ done: 30 });
    expectInOrder(register.notes(), ["killed"]);
    expect(register.of("killed").at(-1)!.number).toBe(12);
    expect(register.of("killed", "end").length).toBe(12);
  });

  test("a process that was stopped loses the task that ran, and no task that had not begun", async () => {
    const { register, start } = stage(urlOf());
    const plan = { keys: ["x"], tasks: 30, ms: 1, options: TURN_OF_FIVE, locks: SHORT };
    const paused = await start("paused", { ...plan, hold: 12 });
    const other = await start("other", plan);
    for (const child of [paused, other]) child.go();
    await register.begins("paused", 12);
    paused.kill("SIGSTOP");
    // Its lease expires, and so does its place in the queue.
    expect(await other.result()).toEqual({ done: 30 });
    paused.kill("SIGCONT");
    paused.go();
    expect(await paused.result()).toEqual({ done: 29, LEASE_LOST: 1 });
    expectInOrder(register.notes(), ["paused"]);
    expect(register.of("paused").map(({ number }) => number)).toEqual(
      Array.from({ length: 30 }, (_, number) => number),
    );
  });
}

describe("on SQLite", () => {
  acrossProcesses(() => `sqlite:${freshFile()}`);
});

describeOn("Redis", "redis", acrossProcesses, async (lab) => (await lab.redis()).url);
describeOn("PostgreSQL", "postgres", acrossProcesses, async (lab) => (await lab.postgres()).url);

/** What differs between these stores is how they wait and what a lease rests on, which other tests cover. */
const briefly = (urlOf: () => string): void => inOrderAcrossProcesses(urlOf, ["a", "b"], 15);

describeOn("sessions of PostgreSQL", "postgres", briefly, async (lab) => {
  return `${(await lab.postgres()).url}?mode=session`;
});
describeOn("a quorum", "redis", briefly, async (lab) => {
  const nodes = await lab.redisNodes(3);
  return `redlock://${nodes.map(({ address, port }) => `${address}:${port}`).join(",")}`;
});
describeOn("etcd", "etcd", briefly, async (lab) => (await lab.etcd()).servers[0]!.url);
describeOn("ZooKeeper", "zookeeper", briefly, async (lab) => {
  // The lab's own limit of 4 s is shorter than the sessions of the default ttl.
  const { servers } = await lab.zookeeper({ config: { maxSessionTimeout: "60000" } });
  return servers[0]!.url;
});

function describeOn(
  store: string,
  needed: "redis" | "postgres" | "etcd" | "zookeeper",
  tests: (urlOf: () => string) => void,
  start: (lab: Lab) => Promise<string>,
): void {
  describeWith([needed], `on ${store}`, () => {
    let lab: Lab;
    let url: string;
    beforeAll(async () => {
      lab = await Lab.open();
      url = await start(lab);
    }, 120_000);
    afterAll(() => lab.close());
    tests(() => url);
  });
}
