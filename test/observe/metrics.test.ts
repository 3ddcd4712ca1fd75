import { execFileSync } from "node:child_process";
import { channel, subscribe, unsubscribe } from "node:diagnostics_channel";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { afterEach, describe, expect, it, test, vi } from "vitest";
import { connect } from "../../src/connect.js";
import { EVENT_NAMES } from "../../src/core/events.js";
import type { Lease } from "../../src/core/lease.js";
import type { RenewAnswer } from "../../src/core/store.js";
import { stale } from "../../src/fence/fence.js";
import { negotiate } from "../../src/observe/exposition.js";
import { type LabelOptions, prometheusMetrics } from "../../src/observe/metrics.js";
import { instrument } from "../../src/observe/otel.js";
import { never, rejection, stage, watch } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import { readSamples } from "./series.js";

const OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;q=0.5";

const running: { stop(): void }[] = [];
afterEach(() => {
  for (const one of running.splice(0)) one.stop();
});
function begin(options?: LabelOptions): ReturnType<typeof prometheusMetrics> {
  const metrics = prometheusMetrics(options);
  running.push(metrics);
  return metrics;
}
const E = '{store="memory",mode="exclusive"}';
const of = (more: string): string => `{store="memory",mode="exclusive",${more}}`;

describe("prometheusMetrics", () => {
  it("counts acquires by outcome, and how long they waited", async () => {
    const metrics = begin();
    const on = stage({ wait: "2s" });
    const first = await on.locks.acquire("a");
    await on.locks.tryAcquire("a");
    const slow = watch(on.locks.acquire("a"));
    await on.clock.advance(2_100);
    expect(slow.outcome).toBe("rejected");
    const next = on.locks.acquire("a");
    await on.clock.advance(700);
    await first.release();
    await next;
    const samples = readSamples(metrics.text());
    const outcomes = ["granted", "busy", "timeout"].map((one) =>
      samples.get(`holdfast_acquires_total${of(`outcome="${one}"`)}`),
    );
    expect(outcomes).toEqual([2, 1, 1]);
    expect(samples.get(`holdfast_wait_seconds_sum${of('outcome="granted"')}`)).toBe(0.7);
    expect(samples.get(`holdfast_wait_seconds_bucket${of('outcome="granted",le="0.5"')}`)).toBe(1);
    expect(samples.get(`holdfast_wait_seconds_bucket${of('outcome="granted",le="1.0"')}`)).toBe(2);
    expect(samples.get(`holdfast_wait_seconds_bucket${of('outcome="granted",le="+Inf"')}`)).toBe(2);
    expect(samples.get(`holdfast_wait_seconds_count${of('outcome="timeout"')}`)).toBe(1);
    expect(samples.get(`holdfast_handovers_total${E}`)).toBe(1);
    expect(samples.get(`holdfast_hold_seconds_sum${of('outcome="released"')}`)).toBe(2.8);
  });

  it("counts renewals, jeopardy, recovery and losses, and those in jeopardy now", async () => {
    const metrics = begin();
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const sample = (name: string): number | undefined => readSamples(metrics.text()).get(name);
    // Before the first loss, or Prometheus would see no increase.
    for (const reason of ["expired", "revoked", "superseded", "max-hold", "closed"]) {
      expect(sample(`holdfast_losses_total${of(`reason="${reason}"`)}`), reason).toBe(0);
    }
    await on.clock.advance(3_400);
    expect(sample(`holdfast_renewals_total${of('outcome="renewed"')}`)).toBe(1);
    expect(sample(`holdfast_renewal_remaining_ratio_bucket${of('le="0.6"')}`)).toBe(0);
    expect(sample(`holdfast_renewal_remaining_ratio_bucket${of('le="0.7"')}`)).toBe(1);
    on.store.onRenew = () => Promise.reject(new Error("down"));
    await on.clock.advance(3_400);
    expect(sample(`holdfast_jeopardized_leases${E}`)).toBe(1);
    expect(sample(`holdfast_renewals_total${of('outcome="failed"')}`)).toBeGreaterThan(0);
    on.store.onRenew = (apply) => apply();
    await on.clock.advance(300);
    expect(sample(`holdfast_jeopardies_total${E}`)).toBe(1);
    expect(sample(`holdfast_recoveries_total${E}`)).toBe(1);
    expect(sample(`holdfast_jeopardized_leases${E}`)).toBe(0);
    on.store.onRenew = (): readonly RenewAnswer[] => [{ kind: "lost", reason: "revoked" }];
    await rejection(lease.renew());
    expect(sample(`holdfast_losses_total${of('reason="revoked"')}`)).toBe(1);
    expect(sample(`holdfast_hold_seconds_count${of('outcome="lost"')}`)).toBe(1);
    expect(sample(`holdfast_held_leases${E}`)).toBe(0);
  });

  it("counts jeopardy as recovered if the lease was good when its holder let go", async () => {
    const metrics = begin();
    const on = stage({ ttl: "10s" });
    const recoveries: unknown[] = [];
    const note = (): void => {
      const samples = readSamples(metrics.text());
      recoveries.push(samples.get(`holdfast_recoveries_total${E}`));
    };
    const leases = [];
    for (const name of ["a", "b", "c"]) leases.push(await on.locks.acquire(name));
    on.store.onRenew = () => Promise.reject(new Error("down"));
    await on.clock.advance(3_400);
    await leases[0]!.release();
    note();
    // Its outcome is unknown.
    on.store.onRelease = () => never();
    await Promise.all([leases[1]!.release(), on.clock.advance(6_000)]);
    note();
    // The third one is lost by now.
    const closed = await on.locks.acquire("d");
    await on.clock.advance(3_400);
    expect(closed.state).toBe("jeopardy");
    await Promise.all([on.locks.close(), on.clock.advance(6_000)]);
    note();
    expect(recoveries).toEqual([1, 2, 3]);
    const samples = readSamples(metrics.text());
    expect(samples.get(`holdfast_jeopardies_total${E}`)).toBe(4);
    expect(samples.get(`holdfast_losses_total${of('reason="expired"')}`)).toBe(1);
    expect(samples.get(`holdfast_jeopardized_leases${E}`)).toBe(0);
  });

  it("counts no lease as jeopardized that another subscriber has ended inside the event", async () => {
    const on = stage({ ttl: "10s" });
    let lease: Lease;
    const release = (): void => void lease.release();
    // It subscribes first, so it is called first.
    subscribe("holdfast:jeopardy", release);
    running.push({ stop: () => void unsubscribe("holdfast:jeopardy", release) });
    const metrics = begin();
    lease = await on.locks.acquire("a");
    const received: string[] = [];
    lease.on("jeopardy", () => received.push("jeopardy"));
    on.store.onRenew = () => Promise.reject(new Error("down"));
    await on.clock.advance(3_400);
    const samples = readSamples(metrics.text());
    expect(samples.get(`holdfast_jeopardies_total${E}`)).toBe(1);
    expect(samples.get(`holdfast_held_leases${E}`)).toBe(0);
    expect(samples.get(`holdfast_jeopardized_leases${E}`)).toBe(0);
    // Nothing of a lease is notified after its release.
    expect(received).toEqual([]);
  });

  it("an acquire that ends as closed is not mistaken for a lease that is lost as closed", async () => {
    const metrics = begin();
    const on = stage({ wait: "1h" });
    await on.locks.acquire("a");
    watch(on.locks.acquire("a"));
    watch(on.locks.acquire("a"));
    await Promise.all([on.locks.close(), on.clock.advance(1)]);
    const samples = readSamples(metrics.text());
    expect(samples.get(`holdfast_losses_total${of('reason="closed"')}`)).toBe(1);
    expect(samples.get(`holdfast_acquires_total${of('outcome="closed"')}`)).toBe(2);
  });

  it("tells the leases of two copies of Holdfast in one process apart", async () => {
    const metrics = begin({ names: (name) => name });
    const leases: Lease[] = [];
    for (const name of ["one", "two"]) {
      vi.resetModules();
      const copy = await import("../core/helpers.js");
      leases.push(await copy.stage().locks.acquire(name));
    }
    const held = (): number =>
      [...readSamples(metrics.text())]
        .filter(([name]) => name.startsWith("holdfast_held_leases"))
        .reduce((sum, [, value]) => sum + value, 0);
    expect(held()).toBe(2);
    for (const lease of leases) await lease.release();
    expect(held()).toBe(0);
  });

  it("shows waiters and held leases, and the age of the oldest of them", async () => {
    const metrics = begin();
    const on = stage({ wait: "1h" });
    const [one, two] = await Promise.all([on.locks.acquire("a"), on.locks.acquire("b")]);
    const waiting = watch(on.locks.acquire("a"));
    const startedAtMs = performance.now();
    while (performance.now() < startedAtMs + 20);
    const samples = readSamples(metrics.text());
    expect(samples.get(`holdfast_held_leases${E}`)).toBe(2);
    expect(samples.get(`holdfast_waiters${E}`)).toBe(1);
    for (const longest of ["hold", "wait"]) {
      const age = samples.get(`holdfast_longest_${longest}_seconds${E}`)!;
      expect(age).toBeGreaterThanOrEqual(0.02);
      expect(age).toBeLessThan(20);
    }
    await one.release();
    await two.release();
    await on.clock.advance(0);
    await (waiting.value as typeof one).release();
    const after = readSamples(metrics.text());
    for (const gauge of [
      "held_leases",
      "waiters",
      "longest_hold_seconds",
      "longest_wait_seconds",
    ]) {
      expect(after.get(`holdfast_${gauge}${E}`)).toBe(0);
    }
  });

  it("counts stale tokens, forced releases, unprotected runs, requests and stalls", async () => {
    const metrics = begin();
    expect(readSamples(metrics.text()).get("holdfast_stale_tokens_total")).toBe(0);
    const on = stage({ ttl: "10s" });
    await on.locks.acquire("a");
    stale("r", 1n, 2n);
    on.clock.stall(600);
    await on.clock.advance(0);
    await on.locks.forceRelease("a", { why: "a test" });
    on.store.onClaim = () => Promise.reject(new Error("down"));
    await on.locks.withLock("c", { wait: 0, onUnavailable: "run" }, () => {});
    const samples = readSamples(metrics.text());
    expect(samples.get("holdfast_stale_tokens_total")).toBe(1);
    expect(samples.get("holdfast_stall_seconds_count")).toBe(1);
    expect(samples.get(`holdfast_revocations_total${E}`)).toBe(1);
    expect(samples.get(`holdfast_unprotected_runs_total${E}`)).toBe(1);
    const requests = (command: string, outcome: string): number | undefined =>
      samples.get(
        `holdfast_request_seconds_count{store="memory",command="${command}",outcome="${outcome}"}`,
      );
    expect(requests("claim", "replied")).toBe(1);
    expect(requests("claim", "failed")).toBe(1);
    expect(requests("revoke", "replied")).toBe(1);
  });

  it("that begins while leases are held counts their ends, and no gauge falls below 0", async () => {
    const on = stage({ wait: "1h" });
    const lease = await on.locks.acquire("a");
    const waiting = on.locks.acquire("a");
    const metrics = begin();
    await lease.release();
    await waiting;
    const samples = readSamples(metrics.text());
    expect(samples.get(`holdfast_hold_seconds_count${of('outcome="released"')}`)).toBe(1);
    expect(samples.get(`holdfast_acquires_total${of('outcome="granted"')}`)).toBe(1);
    expect(samples.get(`holdfast_held_leases${E}`)).toBe(1);
    expect(samples.get(`holdfast_waiters${E}`)).toBe(0);
  });

  it("keeps stores and modes apart, and adds up several Locks of one kind", async () => {
    const metrics = begin();
    const [one, other, etcd] = [stage(), stage(), stage()];
    etcd.store.traits = { ...etcd.store.traits, store: "etcd" };
    await one.locks.acquire("a");
    await other.locks.acquire("a");
    await etcd.locks.acquire("a", { mode: "shared" });
    await etcd.locks.semaphore("s", { permits: 2 }).acquire();
    const samples = readSamples(metrics.text());
    expect(samples.get(`holdfast_held_leases${E}`)).toBe(2);
    expect(samples.get('holdfast_held_leases{store="etcd",mode="shared"}')).toBe(1);
    expect(samples.get('holdfast_held_leases{store="etcd",mode="permits"}')).toBe(1);
  });

  it("ends with stop(): nothing listens, and another instance goes on", async () => {
    const on = stage();
    const first = begin();
    const second = begin();
    await on.locks.acquire("a");
    first.stop();
    first.stop();
    await on.locks.acquire("b");
    const granted = `holdfast_acquires_total${of('outcome="granted"')}`;
    expect(readSamples(first.text()).get(granted)).toBe(1);
    expect(readSamples(second.text()).get(granted)).toBe(2);
    expect(first.text()).not.toContain("holdfast_held_leases{");
    second[Symbol.dispose]();
    for (const event of EVENT_NAMES) {
      expect(channel(`holdfast:${event}`).hasSubscribers, event).toBe(false);
    }
  });

  it.each([null, { names: "a" }, { maxGroups: 0 }, { maxGroups: 1.5 }, { name: () => "a" }])(
    "refuses %j, and listens to nothing then",
    (options) => {
      expect(() => prometheusMetrics(options as never)).toThrow(
        expect.objectContaining({ code: "INVALID_ARGUMENT" }),
      );
      expect(channel("holdfast:asked").hasSubscribers).toBe(false);
    },
  );

  it("refuses a request where its Accept header is wanted", () => {
    const metrics = begin();
    for (const call of [metrics.text, metrics.contentType]) {
      expect(() => call({ headers: {} } as never)).toThrow(
        expect.objectContaining({ code: "INVALID_ARGUMENT" }),
      );
    }
  });
});

describe("series", () => {
  const textAfter = async (names: number, options?: LabelOptions): Promise<string> => {
    const metrics = begin(options);
    const on = stage();
    for (let i = 0; i < names; i++) await (await on.locks.acquire(`order:${i}`)).release();
    return metrics.text();
  };

  it("have no label for names by default: 10,000 names make as many series as one", async () => {
    const text = await textAfter(10_000);
    expect(text).not.toContain("order:");
    expect(readSamples(text).size).toBe(readSamples(await textAfter(1)).size);
  });

  it("and what is kept of leases do not grow with the number of names", async () => {
    setFlagsFromString("--expose-gc");
    const collect = runInNewContext("gc") as () => void;
    const metrics = begin();
    const others = begin({ names: (name) => name });
    const spans = instrument();
    const locks = await connect("memory:");
    const grow = async (from: number, to: number): Promise<number> => {
      for (let i = from; i < to; i++) await (await locks.acquire(`order:${i}`)).release();
      metrics.text();
      others.text();
      collect();
      return process.memoryUsage().heapUsed;
    };
    const beforeBytes = await grow(0, 5_000);
    const grownBytes = (await grow(5_000, 35_000)) - beforeBytes;
    spans.stop();
    await locks.close();
    // One field with a name would be 100 bytes and more.
    expect(grownBytes / 30_000).toBeLessThan(40);
  });

  it("by name are bounded: beyond the limit, names are in the group other", async () => {
    const samples = readSamples(await textAfter(200, { names: (name) => name, maxGroups: 3 }));
    const acquires = [...samples].filter(([key]) => key.startsWith("holdfast_acquires_total"));
    const group = (name: string): string => of(`group="${name}",outcome="granted"`);
    expect(Object.fromEntries(acquires)).toEqual({
      [`holdfast_acquires_total${group("order:0")}`]: 1,
      [`holdfast_acquires_total${group("order:1")}`]: 1,
      [`holdfast_acquires_total${group("order:2")}`]: 1,
      [`holdfast_acquires_total${group("other")}`]: 197,
    });
  });

  it("by name are of 50 groups by default", async () => {
    const text = await textAfter(51, { names: (name) => name });
    expect(text).toContain('group="order:49"');
    expect(text).not.toContain('group="order:50"');
    expect(text).toContain('group="other"');
  });

  it("of a mapping that fails or gives no text are in the group other", async () => {
    for (const names of [
      () => undefined as never,
      () => {
        throw new Error("a bug");
      },
    ]) {
      const text = await textAfter(1, { names });
      expect(text).toContain(`holdfast_acquires_total${of('group="other",outcome="granted"')} 1\n`);
    }
  });

  it("escape quotes, backslashes and line breaks in labels", async () => {
    const text = await textAfter(1, { names: () => 'a"b\\c\nd\ud800' });
    expect(text).toContain('group="a\\"b\\\\c\\nd\ufffd"');
    const lines = text.split("\n").filter((line) => line.includes("group="));
    for (const line of lines) expect(line).toMatch(/^holdfast_\w+\{.*\} \S+$/);
  });
});

describe("the format", () => {
  it.each([
    [undefined, "text"],
    // A Fetch request without the header gives it.
    [null, "text"],
    ["", "text"],
    ["*/*", "text"],
    ["text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "text"],
    ["application/openmetrics-text", "openmetrics"],
    [OPENMETRICS, "openmetrics"],
    // As Prometheus 2 and 3 ask.
    [
      "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
      "openmetrics",
    ],
    [
      "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
      "openmetrics",
    ],
    ["application/openmetrics-text;q=0,text/plain", "text"],
    ["application/openmetrics-text;q=0", "text"],
    ["application/openmetrics-text; version=2.0.0", "text"],
    ["text/plain;q=1,application/openmetrics-text;q=0.5", "text"],
    ["Application/OpenMetrics-Text; Q=0.5", "openmetrics"],
    ["application/openmetrics-text;q=x", "text"],
  ])("for Accept: %s is %s", (accept, format) => {
    expect(negotiate(accept)).toBe(format);
  });

  test("OpenMetrics names families without _total, tells units, and ends with # EOF", async () => {
    const metrics = begin();
    await stage().locks.acquire("a");
    const text = metrics.text(OPENMETRICS);
    expect(metrics.contentType(OPENMETRICS)).toBe(
      "application/openmetrics-text; version=1.0.0; charset=utf-8",
    );
    expect(text).toContain("# TYPE holdfast_acquires counter\n");
    expect(text).toContain("# UNIT holdfast_wait_seconds seconds\n");
    expect(text).toContain(`holdfast_acquires_total${of('outcome="granted"')} 1\n`);
    expect(text).toMatch(/[^\n]\n# EOF\n$/);
    const plain = metrics.text();
    expect(plain).toContain("# TYPE holdfast_acquires_total counter\n");
    expect(plain).not.toMatch(/# (EOF|UNIT)/);
    // One series, whatever was negotiated; only the ages move between the two.
    const keys = (one: string): string[] => [...readSamples(one).keys()];
    expect(keys(text)).toEqual(keys(plain));
  });
});

describeWith(["prometheus"], "promtool", () => {
  test("finds nothing wrong with the text", async () => {
    const metrics = begin({ names: () => 'a"\\\n' });
    const on = stage({ ttl: "10s" });
    on.store.onRenew = () => never();
    await on.locks.acquire("a");
    await on.clock.advance(11_000);
    execFileSync("promtool", ["check", "metrics"], { input: metrics.text(), stdio: "pipe" });
  });
});
