import { type ChildProcess, spawn } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from "vitest";
import type { Lease } from "../../src/core/lease.js";
import { createLocks, type LocksOptions } from "../../src/index.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { build, Deferred, fixedRandom, refusal, rejection, stage, watch } from "../core/helpers.js";
import { freshFile, open } from "../support/sqlite.js";
import { until } from "../support/worker.js";

const SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP"] as const;
const TTL_MS = 20_000;
/** Well before a lease would expire. */
const SOON_MS = 8_000;
const ROOT = fileURLToPath(new URL("../../", import.meta.url));

describe("close with a grace", () => {
  /** One client that closes, and another on the same store. */
  function pair(options: LocksOptions = {}) {
    const on = stage({ ttl: "30s", ...options });
    const more = { clock: on.clock, inner: on.store.inner, random: fixedRandom(0.5, "OTHER") };
    return { ...on, other: stage(options, more).locks };
  }

  it("releases a name as soon as the work under it has stopped", async () => {
    const { locks, other, store, clock } = pair();
    const stopped = new Deferred<void>();
    const seen: string[] = [];
    const work = watch(
      locks.withLock("a", async (lease) => {
        lease.signal.addEventListener("abort", () => seen.push(lease.signal.reason.message));
        await stopped.promise;
        seen.push("stopped");
      }),
    );
    other.acquire("a", { wait: "1m" }).then(() => seen.push("granted"));
    await clock.advance(0);
    const closing = watch(locks.close({ grace: "10s" }));
    await clock.advance(4_000);
    expect(seen).toEqual([expect.stringContaining("close() was called on its Locks object")]);
    expect([closing.outcome, store.closedAtMs]).toEqual(["pending", Number.NaN]);
    stopped.resolve();
    await clock.advance(0);
    expect(seen.slice(1)).toEqual(["stopped", "granted"]);
    expect(work).toMatchObject({ outcome: "rejected", value: { reason: "closed" } });
    expect(closing.outcome).toBe("resolved");
    expect(store.closedAtMs).toBe(clock.elapsedMs());
  });

  it("releases a name at the end of the grace when the work has not stopped", async () => {
    const { locks, other, clock } = pair();
    const late = new Deferred<number>();
    const work = watch(locks.withLock("a", () => late.promise));
    const next = watch(other.acquire("a", { wait: "1m" }));
    await clock.advance(0);
    const closing = watch(locks.close({ grace: "10s" }));
    await clock.advance(9_999);
    expect([closing.outcome, next.outcome]).toEqual(["pending", "pending"]);
    await clock.advance(1);
    expect([closing.outcome, next.outcome]).toEqual(["resolved", "resolved"]);
    late.resolve(7);
    await clock.advance(0);
    expect(work).toMatchObject({ outcome: "rejected", value: { code: "LEASE_LOST", value: 7 } });
    expect((next.value as Lease).state).toBe("held");
  });

  it("rejects waiters at once, refuses new calls, and leaves nothing behind", async () => {
    const { locks, other, store, clock } = pair();
    const held = await other.acquire("a");
    const mine = await locks.acquire("b");
    const waiting = watch(locks.acquire("a", { wait: "1m" }));
    await clock.advance(0);
    const closing = watch(locks.close({ grace: "5s" }));
    await clock.advance(0);
    expect(waiting).toMatchObject({ outcome: "rejected", value: { code: "CLOSED" } });
    expect(store.inspect("default:a")!.waiters).toEqual([]);
    for (const call of [
      locks.acquire("c"),
      locks.tryAcquire("b"),
      locks.withLock("c", () => {}),
      locks.inspect("b"),
      locks.forceRelease("b", { why: "test" }),
    ]) {
      expect((await rejection(call)).code).toBe("CLOSED");
    }
    expect(refusal(() => mine.assertHeld())).toMatchObject({ reason: "closed" });
    await clock.advance(5_000);
    expect(closing.outcome).toBe("resolved");
    await held.release();
    await other.close();
    expect([store.inspect("default:a"), store.inspect("default:b")]).toEqual([null, null]);
    expect(clock.timers).toBe(0);
  });

  it("ends as soon as users have released their leases, at once or later", async () => {
    const { locks, clock } = pair();
    const [one, two, three] = await Promise.all(["a", "b", "c"].map((name) => locks.acquire(name)));
    one!.signal.addEventListener("abort", () => void one!.release());
    two!.on("lost", () => void two!.release());
    three!.signal.addEventListener("abort", () => clock.after(1_000, () => void three!.release()));
    const closing = watch(locks.close({ grace: "10s" }));
    await clock.advance(999);
    expect(closing.outcome).toBe("pending");
    await clock.advance(1);
    expect(closing.outcome).toBe("resolved");
    expect(clock.timers).toBe(0);
  });

  it("is one close, however often it is called, and refuses bad options", async () => {
    const { locks, clock } = pair();
    await locks.acquire("a");
    for (const bad of [{ grace: -1 }, { grace: "soon" }, { patience: 1 }, null]) {
      expect((await rejection(locks.close(bad as never))).code).toBe("INVALID_ARGUMENT");
    }
    // Those calls closed nothing.
    await (await locks.acquire("b")).release();
    const closing = locks.close({ grace: "5s" });
    expect(locks.close()).toBe(closing);
    await clock.advance(5_000);
    await closing;
  });

  it("takes the grace and the request timeout, and no more, when the store hangs", async () => {
    const { locks, store, clock } = pair({ commandTimeout: "1s" });
    await locks.acquire("a");
    store.onRelease = () => new Promise(() => {});
    const closing = watch(locks.close({ grace: "5s" }));
    await clock.advance(6_000);
    expect(closing.outcome).toBe("resolved");
    expect(clock.timers).toBe(0);
  });
});

describe("releaseOnExit", () => {
  const counts = () => [...SIGNALS, "beforeExit"].map((event) => process.listenerCount(event));

  it("is off by default: without it no listener is installed", async () => {
    const before = counts();
    for (const options of [{}, { releaseOnExit: false }]) {
      const locks = createLocks(memoryStore(), options);
      await locks.acquire("a");
      expect(counts()).toEqual(before);
      await locks.close();
    }
  });

  it("installs one listener for all Locks, and none is left when all are closed", async () => {
    const before = counts();
    const more = before.map((count) => count + 1);
    const one = createLocks(memoryStore(), { releaseOnExit: true });
    const two = createLocks(memoryStore(), { releaseOnExit: { grace: 0 } });
    const term = createLocks(memoryStore(), { releaseOnExit: { signals: ["SIGTERM"] } });
    expect(counts()).toEqual(more);
    await one.close();
    expect(counts()).toEqual(more);
    await two.close();
    expect(counts()).toEqual([more[0], before[1], before[2], more[3]]);
    await term.close();
    expect(counts()).toEqual(before);
  });

  it("refuses a signal that can't be caught, and leaves nothing behind", () => {
    const before = counts();
    for (const signal of ["SIGKILL", "SIGSTOP"] as const) {
      const refused = refusal(() =>
        createLocks(memoryStore(), { releaseOnExit: { signals: ["SIGTERM", signal] } }),
      );
      expect(refused.code).toBe("INVALID_ARGUMENT");
      expect(counts()).toEqual(before);
    }
  });
});

describe("a process with releaseOnExit", () => {
  let built: ReturnType<typeof build>;
  beforeAll(() => {
    built = build();
    // Installed as by a user: the example imports the package by its name, and the store its driver.
    const manifest = { name: "holdfast", type: "module", exports: "./index.js" };
    writeFileSync(built.file("package.json"), JSON.stringify(manifest));
    symlinkSync(`${ROOT}node_modules`, built.file("node_modules"));
    mkdirSync(built.file("examples"));
    copyFileSync(`${ROOT}examples/shutdown.mjs`, built.file("examples/shutdown.mjs"));
  });
  afterAll(() => built.remove());

  /** A real process that prints what happens, line by line. */
  class Child {
    readonly lines: string[] = [];
    readonly ended: Promise<{ code: number | null; signal: string | null }>;
    readonly #process: ChildProcess;
    #over = false;

    constructor(args: string[], env: Record<string, string> = {}) {
      this.#process = spawn(process.execPath, args, {
        stdio: ["ignore", "pipe", "inherit"],
        env: { ...process.env, ...env },
      });
      const output = createInterface({ input: this.#process.stdout! });
      output.on("line", (line) => this.lines.push(line));
      // The process ends after its last line.
      this.ended = new Promise((resolve) => {
        this.#process.once("close", (code, signal) => {
          this.#over = true;
          resolve({ code, signal });
        });
      });
      onTestFinished(async () => {
        this.#process.kill("SIGKILL");
        await this.ended;
      });
    }

    says(what: string | RegExp): Promise<void> {
      return until(`it says ${what}; it said ${this.lines.join(", ")}`, () => {
        if (this.lines.some((line) => line.match(what) !== null)) return true;
        if (this.#over) throw new Error(`it ended without ${what}: ${this.lines.join(", ")}`);
        return false;
      });
    }

    signal(signal: NodeJS.Signals): void {
      this.#process.kill(signal);
    }
  }

  /** Keeps the process busy for a minute: a process without work ends by itself. */
  const BUSY = "const busy = setInterval(() => {}, 60_000);";

  const start = (file: string, body: string) =>
    new Child([
      "--input-type=module",
      "-e",
      `import { setTimeout as sleep } from "node:timers/promises";
      import { connect } from ${JSON.stringify(built.file("index.js"))};
      const say = (...words) => console.log(...words);
      const open = (releaseOnExit) =>
        connect(${JSON.stringify(`sqlite:${file}`)}, { ttl: ${TTL_MS}, releaseOnExit });
      const untilAborted = ({ signal }) => new Promise((resolve) => {
        const onAbort = () => { say("aborted:", signal.reason.reason); resolve(); };
        if (signal.aborted) onAbort(); else signal.addEventListener("abort", onAbort);
      });
      ${body}`,
    ]);

  /** Acquires the name in this process as soon as it is free. */
  async function next(file: string, name = "a") {
    const locks = await open(file, { ttl: TTL_MS });
    const askedAtMs = performance.now();
    const lease = await locks.acquire(name, { wait: TTL_MS * 2 });
    return { lease, waitedMs: performance.now() - askedAtMs };
  }

  it.each(SIGNALS)(
    "stops its work on %s, releases its names, and ends as it would without us",
    async (signal) => {
      const file = freshFile();
      const child = start(
        file,
        `${BUSY}
      const locks = await open(true);
      await locks.withLock("a", async (lease) => {
        say("holds");
        await untilAborted(lease);
        await sleep(200);
        (await import("node:fs")).writeFileSync(${JSON.stringify(`${file}-stopped`)}, "");
        say("stopped");
      }).catch((error) => say(error.code));`,
      );
      await child.says("holds");
      const waiting = next(file);
      // By a file: a line of the child may be read after the grant that its release has made.
      const stopped = waiting.then(() => existsSync(`${file}-stopped`));
      child.signal(signal);
      const { lease, waitedMs } = await waiting;
      expect(lease.state).toBe("held");
      expect(waitedMs).toBeLessThan(SOON_MS);
      expect(await stopped).toBe(true);
      expect(await child.ended).toEqual({ code: null, signal });
      expect(child.lines).toEqual(["holds", "aborted: closed", "stopped", "LEASE_LOST"]);
    },
  );

  it("rejects an acquire that waits", async () => {
    const file = freshFile();
    const { lease } = await next(file);
    const child = start(
      file,
      `const locks = await open(true);
      say("waits");
      await locks.acquire("a", { wait: Infinity }).catch((error) => say(error.code));`,
    );
    await child.says("waits");
    const looking = await open(file);
    await until("it stands in line", async () => {
      return (await looking.inspect("a"))?.waiters.length === 1;
    });
    child.signal("SIGTERM");
    expect(await child.ended).toEqual({ code: null, signal: "SIGTERM" });
    expect(child.lines).toEqual(["waits", "CLOSED"]);
    expect((await looking.inspect("a"))!.waiters).toEqual([]);
    expect(lease.state).toBe("held");
  });

  /** Work that does not stop when its signal aborts. */
  const stubborn = (file: string, grace: number): Child =>
    start(
      file,
      `${BUSY}
      const locks = await open({ grace: ${grace} });
      await locks.withLock("a", async (lease) => {
        say("holds");
        await untilAborted(lease);
        await sleep(60_000);
      });`,
    );

  it("releases at the end of the grace the names of work that has not stopped", async () => {
    const file = freshFile();
    const child = stubborn(file, 300);
    await child.says("holds");
    child.signal("SIGTERM");
    const { waitedMs } = await next(file);
    expect(waitedMs).toBeLessThan(SOON_MS);
    expect(await child.ended).toEqual({ code: null, signal: "SIGTERM" });
  });

  it.each(["SIGTERM", "SIGINT"] as const)(
    "ends at once by a second signal, %s, during the grace",
    async (second) => {
      const file = freshFile();
      const child = stubborn(file, 60_000);
      await child.says("holds");
      child.signal("SIGTERM");
      await child.says("aborted: closed");
      child.signal(second);
      expect(await child.ended).toEqual({ code: null, signal: second });
    },
  );

  it.each([
    ["on", "before"],
    ["on", "after"],
    ["once", "before"],
    ["once", "after"],
  ])(
    "leaves ending the process to the user's own listener: %s, installed %s",
    async (how, when) => {
      const file = freshFile();
      const mine = `process.${how}("SIGTERM", async () => {
      say("mine begins");
      await sleep(1_500);
      say("mine ends");
      process.exit(7);
    });`;
      // Our release is done long before the user's own listener ends.
      const ours = "const locks = await open({ grace: 100 });";
      const child = start(
        file,
        `${BUSY}
      ${when === "before" ? mine + ours : ours + mine}
      await locks.acquire("a");
      say("holds");`,
      );
      await child.says("holds");
      child.signal("SIGTERM");
      expect((await next(file)).waitedMs).toBeLessThan(SOON_MS);
      expect(await child.ended).toEqual({ code: 7, signal: null });
      expect(child.lines).toEqual(["holds", "mine begins", "mine ends"]);
    },
  );

  it("closes all of its Locks", async () => {
    const file = freshFile();
    const child = start(
      file,
      `${BUSY}
      const locks = await open(true);
      const second = await open({ signals: ["SIGTERM"] });
      await Promise.all([locks, second].map((one, i) => one.withLock("ab"[i], async (lease) => {
        say("holds", lease.name);
        await untilAborted(lease);
        await sleep(100 * (i + 1));
      }).catch(() => say("stopped"))));`,
    );
    await Promise.all([child.says("holds a"), child.says("holds b")]);
    child.signal("SIGTERM");
    for (const { waitedMs } of await Promise.all([next(file, "a"), next(file, "b")])) {
      expect(waitedMs).toBeLessThan(SOON_MS);
    }
    expect(await child.ended).toEqual({ code: null, signal: "SIGTERM" });
    expect(child.lines.filter((line) => line === "stopped")).toHaveLength(2);
  });

  it("releases its names when it has nothing left to do, does not wait, and ends with code 0", async () => {
    const file = freshFile();
    const child = start(
      file,
      `const locks = await open(true);
      await locks.acquire("a");
      const startedAt = performance.now();
      process.once("exit", () => say("ended after", Math.round((performance.now() - startedAt) / 1_000)));`,
    );
    expect(await child.ended).toEqual({ code: 0, signal: null });
    expect(child.lines).toEqual([expect.stringMatching(/^ended after [012]$/)]);
    expect((await next(file)).waitedMs).toBeLessThan(SOON_MS);
  });

  it("behaves as if there were none after its locks are closed", async () => {
    const child = start(
      freshFile(),
      `${BUSY}
      const locks = await open(true);
      await locks.acquire("a");
      await locks.close();
      say("closed", process.listenerCount("SIGTERM"), process.listenerCount("beforeExit"));`,
    );
    await child.says("closed 0 0");
    child.signal("SIGTERM");
    expect(await child.ended).toEqual({ code: null, signal: "SIGTERM" });
  });

  it("listens to the signals that the option names", async () => {
    const file = freshFile();
    const child = start(
      file,
      `${BUSY}
      const locks = await open({ signals: ["SIGUSR2"] });
      await locks.withLock("a", async (lease) => {
        say("holds");
        await untilAborted(lease);
      }).catch(() => say("stopped"));`,
    );
    await child.says("holds");
    child.signal("SIGUSR2");
    expect((await next(file)).waitedMs).toBeLessThan(SOON_MS);
    expect(await child.ended).toEqual({ code: null, signal: "SIGUSR2" });
    expect(child.lines).toContain("stopped");
  });

  it("runs examples/shutdown.mjs, which stops its work, cleans up and hands over", async () => {
    const file = freshFile();
    const path = built.file("examples/shutdown.mjs");
    const [first, second] = [0, 1].map(
      () => new Child([path], { HOLDFAST_STORE: `sqlite:${file}` }),
    );
    const leading = await Promise.race(
      [first!, second!].map((one) => one.says("took over").then(() => one)),
    );
    const other = leading === first ? second! : first!;
    await leading.says("order 2: paid 20");
    expect(other.lines).toEqual([]);
    leading.signal("SIGTERM");
    await other.says("order 1: paid 10");
    expect(await leading.ended).toEqual({ code: null, signal: "SIGTERM" });
    expect(leading.lines.slice(-3)).toEqual([
      "tidied up; the lease is lost",
      expect.stringMatching(/^LEASE_LOST: .*close\(\) was called on its Locks object/),
      "CLOSED: close() was called on this Locks object: make another one",
    ]);
    const token = (child: Child) => BigInt(/token (\d+)/.exec(child.lines[0]!)![1]!);
    expect(token(other)).toBeGreaterThan(token(leading));
    other.signal("SIGINT");
    expect(await other.ended).toEqual({ code: null, signal: "SIGINT" });
  });
});
