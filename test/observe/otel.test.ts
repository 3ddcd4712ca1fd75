import { channel } from "node:diagnostics_channel";
import { context, metrics as meters, SpanStatusCode, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from "@opentelemetry/sdk-metrics";
import {
  BasicTracerProvider,
  InMemorySpanExporter,
  type ReadableSpan,
  SimpleSpanProcessor,
} from "@opentelemetry/sdk-trace-base";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { EVENT_NAMES } from "../../src/core/events.js";
import type { RenewAnswer } from "../../src/core/store.js";
import { memoryFence } from "../../src/fence/memory.js";
import { METRIC_NAMES } from "../../src/observe/metric-table.js";
import { type InstrumentOptions, instrument } from "../../src/observe/otel.js";
import { rejection, stage, watch } from "../core/helpers.js";

const manager = new AsyncLocalStorageContextManager();
beforeAll(() => void context.setGlobalContextManager(manager.enable()));
afterAll(() => context.disable());

const running: { stop(): void }[] = [];
afterEach(() => {
  for (const one of running.splice(0)) one.stop();
});

/** The SDK as an application sets it up, with its exporters in memory. */
function begin(options: InstrumentOptions = {}, { isGlobal = false } = {}) {
  const spans = new InMemorySpanExporter();
  const tracerProvider = new BasicTracerProvider({
    spanProcessors: [new SimpleSpanProcessor(spans)],
  });
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 1e9 });
  const meterProvider = new MeterProvider({ readers: [reader] });
  if (isGlobal) {
    trace.setGlobalTracerProvider(tracerProvider);
    meters.setGlobalMeterProvider(meterProvider);
    running.push({ stop: () => trace.disable() }, { stop: () => meters.disable() });
  }
  const providers = isGlobal ? {} : { tracerProvider, meterProvider };
  const instrumentation = instrument({ ...providers, ...options });
  running.push(instrumentation, { stop: () => void meterProvider.shutdown() });
  return {
    instrumentation,
    tracer: tracerProvider.getTracer("app"),
    spans: (): ReadableSpan[] => spans.getFinishedSpans(),
    span: (name: string): ReadableSpan =>
      spans.getFinishedSpans().find((one) => one.name === name)!,
    async metrics() {
      exporter.reset();
      await meterProvider.forceFlush();
      const all = exporter.getMetrics().flatMap((one) => one.scopeMetrics);
      return new Map(
        all
          .flatMap((scope) => scope.metrics)
          .map(({ descriptor, dataPoints }) => [descriptor.name, { descriptor, dataPoints }]),
      );
    },
  };
}

describe("the metrics of instrument", () => {
  it("are those of Prometheus under OpenTelemetry's naming", async () => {
    const otel = begin({ names: (name) => name.slice(0, 1) });
    const on = stage({ ttl: "10s", wait: "1h" });
    const lease = await on.locks.acquire("a1");
    const next = on.locks.acquire("a1");
    await on.clock.advance(3_400);
    on.clock.stall(600);
    await lease.release();
    const second = await next;
    // The timer fires after the stall.
    await on.clock.advance(0);
    const waiting = watch(on.locks.acquire("a1"));
    const metrics = await otel.metrics();
    const expected = METRIC_NAMES.map((name) => `holdfast.${name}`);
    expect([...metrics.keys()].toSorted()).toEqual(expected.toSorted());
    expect(metrics.get("holdfast.stall")!.dataPoints).toMatchObject([
      { attributes: {}, value: { count: 1 } },
    ]);
    const wait = metrics.get("holdfast.wait")!;
    expect(wait.descriptor.unit).toBe("s");
    // In braces: what is counted.
    expect(metrics.get("holdfast.held_leases")!.descriptor.unit).toBe("{lease}");
    for (const name of metrics.keys()) expect(name).toMatch(/^holdfast\.[a-z]+(_[a-z]+)*$/);
    expect(wait.dataPoints).toMatchObject([
      {
        attributes: {
          "holdfast.store": "memory",
          "holdfast.mode": "exclusive",
          "holdfast.group": "a",
          "holdfast.outcome": "granted",
        },
        value: { count: 2, sum: 4, buckets: { boundaries: expect.arrayContaining([0.001, 1800]) } },
      },
    ]);
    const value = (name: string): unknown => metrics.get(`holdfast.${name}`)!.dataPoints[0]!.value;
    expect([value("handovers"), value("held_leases"), value("waiters")]).toEqual([1, 1, 1]);
    await second.release();
    await on.clock.advance(0);
    await (waiting.value as typeof lease).release();
    const after = await otel.metrics();
    expect(after.get("holdfast.held_leases")!.dataPoints[0]!.value).toBe(0);
  });

  it.each([
    [null, /the options of instrument are null; they must be a plain object/],
    [{ meterProvider: 5 }, /meterProvider is 5; .* getMeter\(\)/],
    [{ tracerProvider: {} }, /tracerProvider is .*; .* getTracer\(\)/],
    [{ maxGroups: 0 }, /maxGroups is 0/],
    [{ meter: 1 }, /have no option "meter"/],
  ])("refuses %j, and listens to nothing then", (options, message) => {
    expect(() => instrument(options as never)).toThrow(
      expect.objectContaining({
        code: "INVALID_ARGUMENT",
        message: expect.stringMatching(message),
      }),
    );
    for (const event of EVENT_NAMES) {
      expect(channel(`holdfast:${event}`).hasSubscribers, event).toBe(false);
    }
  });

  it("and the spans go to the global providers by default", async () => {
    const otel = begin({}, { isGlobal: true });
    await (await stage().locks.acquire("a")).release();
    expect((await otel.metrics()).get("holdfast.acquires")!.dataPoints).toHaveLength(1);
    expect(otel.spans().map(({ name }) => name)).toEqual(["holdfast.wait", "holdfast.hold"]);
  });

  it("end with stop(), together with the spans", async () => {
    const otel = begin();
    const on = stage();
    await on.locks.acquire("a");
    otel.instrumentation.stop();
    otel.instrumentation.stop();
    expect(otel.spans().map(({ name }) => name)).toEqual(["holdfast.wait", "holdfast.hold"]);
    await on.locks.acquire("b");
    const metrics = await otel.metrics();
    expect(metrics.get("holdfast.acquires")!.dataPoints[0]!.value).toBe(1);
    expect(metrics.get("holdfast.held_leases")?.dataPoints ?? []).toEqual([]);
    expect(otel.spans()).toHaveLength(2);
    for (const event of EVENT_NAMES) {
      expect(channel(`holdfast:${event}`).hasSubscribers, event).toBe(false);
    }
  });

  it("need no SDK: without one, nothing is recorded", async () => {
    running.push(instrument());
    await (await stage().locks.acquire("a")).release();
  });
});

describe("the spans of instrument", () => {
  it("are one around the wait and one around the hold, below the caller's span", async () => {
    const otel = begin();
    const on = stage({ holder: "me" });
    const first = await on.locks.acquire("a");
    const caller = otel.tracer.startSpan("caller");
    const working = context.with(trace.setSpan(context.active(), caller), () =>
      on.locks.withLock("a", async (lease) => String(lease.token)),
    );
    await on.clock.advance(700);
    await first.release();
    const token = await working;
    const ofCaller = otel.spans().filter((one) => one.parentSpanContext !== undefined);
    expect(ofCaller.map(({ name }) => name)).toEqual(["holdfast.wait", "holdfast.hold"]);
    const [wait, hold] = ofCaller as [ReadableSpan, ReadableSpan];
    for (const span of [wait, hold]) {
      expect(span.parentSpanContext!.spanId).toBe(caller.spanContext().spanId);
    }
    const attributes = {
      "holdfast.name": "a",
      "holdfast.store": "memory",
      "holdfast.mode": "exclusive",
      "holdfast.holder": "me",
      "holdfast.token": token,
    };
    expect(wait.attributes).toEqual({
      ...attributes,
      "holdfast.permits": 1,
      "holdfast.handed_over": true,
      "holdfast.outcome": "granted",
    });
    expect(hold.attributes).toEqual({ ...attributes, "holdfast.outcome": "released" });
    expect(hold.links.map((one) => one.context.spanId)).toEqual([wait.spanContext().spanId]);
    expect(hold.status.code).toBe(SpanStatusCode.UNSET);
  });

  it("of concurrent acquires of one name are kept apart", async () => {
    const otel = begin();
    const on = stage({ wait: "1h" });
    const leases = ["1", "2", "3"].map(async (note) => {
      const lease = await on.locks.acquire("a", { note });
      await lease.release();
    });
    await on.clock.advance(0);
    await Promise.all(leases);
    const notes = otel
      .spans()
      .filter(({ name }) => name === "holdfast.hold")
      .map(({ attributes, links }) => [
        String(attributes["holdfast.holder"]).slice(-3),
        otel.spans().find((one) => one.spanContext().spanId === links[0]!.context.spanId)!
          .attributes["holdfast.holder"],
      ]);
    expect(notes.map(([note]) => note)).toEqual(["(1)", "(2)", "(3)"]);
    for (const [note, waiter] of notes) expect(waiter).toContain(note);
  });

  it("record jeopardy, recovery and loss as events, and a loss as an error", async () => {
    const otel = begin();
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => Promise.reject(new Error("down"));
    await on.clock.advance(3_400);
    on.store.onRenew = (apply) => apply();
    await lease.renew();
    on.store.onRenew = (): readonly RenewAnswer[] => [{ kind: "lost", reason: "revoked" }];
    await rejection(lease.renew());
    const hold = otel.span("holdfast.hold");
    const moments = ["holdfast.jeopardy", "holdfast.recovered", "holdfast.lost"];
    expect(hold.events.map(({ name }) => name)).toEqual(moments);
    expect(hold.events[0]!.attributes).toMatchObject({
      "holdfast.cause": "down",
      "holdfast.remaining_ms": expect.any(Number),
    });
    expect(hold.events[2]!.attributes).toEqual({ "holdfast.reason": "revoked" });
    expect(hold.status).toEqual({ code: SpanStatusCode.ERROR, message: "lease lost: revoked" });
    expect(hold.attributes["holdfast.outcome"]).toBe("lost");
  });

  it("of a wait that fails say why; busy is no error, and neither is close()", async () => {
    const otel = begin();
    const on = stage();
    await on.locks.acquire("a");
    await on.locks.tryAcquire("a");
    on.store.onClaim = () => Promise.reject(new Error("down"));
    await rejection(on.locks.acquire("b", { wait: 0 }));
    await Promise.all([on.locks.close(), on.clock.advance(10)]);
    const ends = otel
      .spans()
      .map(({ name, attributes, status }) => [
        name,
        attributes["holdfast.outcome"],
        status.code === SpanStatusCode.ERROR,
      ]);
    expect(ends).toEqual([
      ["holdfast.wait", "granted", false],
      ["holdfast.wait", "busy", false],
      ["holdfast.wait", "unavailable", true],
      ["holdfast.hold", "lost", false],
    ]);
  });

  it("of the code that writes record the tokens that a fence refuses", async () => {
    const otel = begin();
    const fence = memoryFence();
    await fence.enter(undefined, "stock", { token: 9n, floor: 9n });
    const writer = otel.tracer.startSpan("writer");
    await context.with(trace.setSpan(context.active(), writer), () =>
      rejection(fence.guard(undefined, "stock", { token: 5n, floor: 5n })),
    );
    writer.end();
    expect(otel.span("writer").events).toMatchObject([
      {
        name: "holdfast.stale_token",
        attributes: {
          "holdfast.resource": "stock",
          "holdfast.token": "5",
          "holdfast.highest": "9",
        },
      },
    ]);
  });
});
