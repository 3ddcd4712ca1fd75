import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { build, runNode } from "./helpers.js";

let built: ReturnType<typeof build>;
beforeAll(() => {
  built = build();
});
afterAll(() => built.remove());

/** Ends with `end <ms> <timers and sockets that are left>`. */
const script = (body: string): string => `
  import { connect } from ${JSON.stringify(built.file("index.js"))};
  const startedAt = performance.now();
  process.on("exit", () => {
    const left = process.getActiveResourcesInfo().filter((one) => !/TTY|Pipe/.test(one));
    console.log("end", Math.round(performance.now() - startedAt), left.length);
  });
  const locks = await connect("memory:", { ttl: "2s" });
  ${body}`;

async function run(body: string) {
  const done = await runNode(script(body));
  const lines = done.out.split("\n");
  const [, ms, left] = /^end (\d+) (\d+)$/.exec(lines.pop() ?? "") ?? [];
  return { ...done, lines, ms: Number(ms), left: Number(left) };
}

describe("a process", () => {
  it("that waits for a busy name does not end in the middle of the wait", async () => {
    const done = await run(`
      await locks.acquire("a");
      const error = await locks.acquire("a", { wait: 400 }).catch((error) => error);
      console.log(error.code);`);
    expect(done).toMatchObject({ code: 0, lines: ["ACQUIRE_TIMEOUT"] });
    expect(done.ms).toBeGreaterThanOrEqual(399);
    expect(done.ms).toBeLessThan(5_000);
  });

  it("that waits is granted when the holder's lease runs out", async () => {
    const done = await run(`
      await locks.acquire("a", { ttl: 300, renew: false });
      const lease = await locks.acquire("a", { wait: "5s" });
      console.log(lease.state);`);
    expect(done).toMatchObject({ code: 0, lines: ["held"] });
    expect(done.ms).toBeGreaterThanOrEqual(299);
    expect(done.ms).toBeLessThan(5_000);
  });

  it("that waits for renew() does not end before it", async () => {
    const done = await run(`
      const lease = await locks.acquire("a");
      await lease.renew("1m");
      console.log(lease.remainingMs > 50_000);`);
    expect(done).toMatchObject({ code: 0, lines: ["true"] });
  });

  it("that holds a lease and has nothing else to do ends", async () => {
    const done = await run(`
      const lease = await locks.acquire("a");
      lease.signal; lease.on("lost", () => console.log("lost"));
      const many = await Promise.all(Array.from({ length: 600 }, (_, i) => locks.acquire("n" + i)));`);
    expect(done).toMatchObject({ code: 0, lines: [], left: 0 });
    expect(done.ms).toBeLessThan(5_000);
  });

  it("that holds a lease and goes on working keeps it", async () => {
    const done = await run(`
      const lease = await locks.acquire("a", { ttl: 1_000 });
      setTimeout(() => console.log(lease.state), 1_700);`);
    expect(done).toMatchObject({ code: 0, lines: ["held"], left: 0 });
  });

  it("that has closed its locks has no timer and no socket, and ends at once", async () => {
    const done = await run(`
      const leases = await Promise.all(["a", "b"].map((name) => locks.acquire(name)));
      const waiting = locks.acquire("a", { wait: Infinity }).catch((error) => console.log(error.code));
      await locks.close();
      await waiting;
      console.log(leases.map((lease) => lease.state).join());
      console.log(process.getActiveResourcesInfo().filter((one) => one === "Timeout").length);`);
    expect(done).toMatchObject({ code: 0, lines: ["CLOSED", "lost,lost", "0"], left: 0 });
    expect(done.ms).toBeLessThan(5_000);
  });

  it("a listener that throws raises an uncaught exception, and the lease is renewed all the same", async () => {
    // Under the virtual clock: the process is tested here, not its speed.
    const done = await run(`
      process.on("uncaughtException", (error) => console.log("uncaught:", error.message));
      const { createLocksOn } = await import(${JSON.stringify(built.file("locks.js"))});
      const { systemRuntime } = await import(${JSON.stringify(built.file("core/runtime.js"))});
      const { memoryStore } = await import(${JSON.stringify(built.file("stores/memory/index.js"))});
      const { VirtualClock } = await import(${JSON.stringify(built.file("testing/virtual-clock.js"))});
      const clock = new VirtualClock();
      const store = memoryStore({ clock: clock.forStore() });
      const mine = createLocksOn({ ...systemRuntime(), clock }, store, { ttl: "10s" });
      const lease = await mine.acquire("a");
      const other = await mine.acquire("b");
      lease.on("jeopardy", () => { throw new Error("jeopardy"); });
      lease.on("recovered", () => { throw new Error("recovered"); });
      lease.on("lost", () => { throw new Error("lost"); });
      lease.signal.addEventListener("abort", () => { throw new Error("aborted"); });
      const renew = store.renew;
      store.renew = () => { throw new Error("down"); };
      await clock.advance(4_000);
      console.log(lease.state, other.state);
      store.renew = renew;
      await clock.advance(60_000);
      console.log(lease.state, other.state);
      store.renew = () => { throw new Error("down for good"); };
      await clock.advance(10_000);
      console.log(lease.state, other.state);`);
    expect(done.code).toBe(0);
    expect(done.lines.slice(0, 4)).toEqual([
      "uncaught: jeopardy",
      "jeopardy jeopardy",
      "uncaught: recovered",
      "held held",
    ]);
    expect(done.lines.slice(4, -1).toSorted()).toEqual([
      "uncaught: aborted",
      "uncaught: jeopardy",
      "uncaught: lost",
    ]);
    expect(done.lines.at(-1)).toBe("lost lost");
  });

  it("a listener that throws ends a process without a handler, as any uncaught error does", async () => {
    const done = await run(`
      const lease = await locks.acquire("a", { ttl: 50, renew: false });
      lease.on("lost", () => { throw new Error("mine"); });
      setTimeout(() => console.log("too far"), 3_000);`);
    expect(done.code).not.toBe(0);
    expect(done.err).toContain("Error: mine");
    expect(done.lines).not.toContain("too far");
  });
});
