import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { PINGS_PER_TIMEOUT, TIMEOUT_PER_TTL } from "../../../src/stores/zookeeper/link.js";
import { Liveness, type LivenessReply } from "../../../src/stores/zookeeper/liveness.js";
import { VirtualClock } from "../../../src/testing/virtual-clock.js";

const T = 3_000;
const C = T / 3;

interface Step {
  readonly gapMs: number;
  readonly rttMs: number;
  readonly isWrite: boolean;
  readonly succeeded: boolean;
  readonly reconnects: boolean;
}

/** A client on a virtual clock: what it sends is answered after `rttMs`. */
class Scene {
  readonly clock = new VirtualClock();
  readonly liveness = new Liveness(T);
  readonly #startMs = this.clock.elapsedMs();
  #connection = { number: 0, server: "zk:2181", connectSentAtMs: 0 };

  get nowMs(): number {
    return this.clock.elapsedMs() - this.#startMs;
  }

  get provedAtMs(): number {
    return this.liveness.provedAtMs - this.#startMs;
  }

  connect(): LivenessReply["connection"] {
    const number = this.#connection.number + 1;
    this.#connection = { ...this.#connection, number, connectSentAtMs: this.clock.elapsedMs() };
    return this.#connection;
  }

  async answered(what: Partial<LivenessReply> = {}, rttMs = 10): Promise<void> {
    const sentAtMs = this.clock.elapsedMs();
    const connection = this.#connection;
    await this.clock.advance(rttMs);
    const answeredAtMs = this.clock.elapsedMs();
    const reply = { sentAtMs, answeredAtMs, connection, isWrite: false, succeeded: true };
    this.liveness.replied({ ...reply, ...what });
  }

  write = (rttMs?: number): Promise<void> => this.answered({ isWrite: true }, rttMs);
  ping = (rttMs?: number): Promise<void> => this.answered({}, rttMs);
}

describe("when a session of ZooKeeper is proved to live", () => {
  test("nothing is proved before a write is answered", async () => {
    const scene = new Scene();
    scene.connect();
    for (let i = 0; i < 20; i++) await scene.ping(200);
    expect(scene.liveness.provedAtMs).toBe(Number.NEGATIVE_INFINITY);
  });

  test("the first write on a connection proves its connect request, and nothing later", async () => {
    const scene = new Scene();
    await scene.clock.advance(500);
    scene.connect();
    await scene.clock.advance(100);
    await scene.write();
    expect(scene.provedAtMs).toBe(500);
    await scene.write();
    expect(scene.provedAtMs, "a write does not extend the session").toBe(500);
  });

  test("a write proves the last touch that was answered C before it was sent", async () => {
    const scene = new Scene();
    scene.connect();
    await scene.clock.advance(100);
    await scene.ping(50);
    await scene.clock.advance(C - 1);
    await scene.write();
    expect(scene.provedAtMs, "the ping was answered at 150").toBe(0);
    await scene.write();
    expect(scene.provedAtMs).toBe(100);
  });

  test("a touch that was sent in time and answered too late is not proved", async () => {
    const scene = new Scene();
    scene.connect();
    await scene.clock.advance(100);
    const slow = scene.ping(600);
    await slow;
    await scene.clock.advance(C - 300);
    await scene.write();
    expect(scene.provedAtMs).toBe(0);
  });

  test("a write is a touch, too, for the next proof", async () => {
    const scene = new Scene();
    scene.connect();
    await scene.clock.advance(100);
    await scene.write();
    await scene.clock.advance(C + 10);
    await scene.write();
    expect(scene.provedAtMs).toBe(100);
  });

  test.each([
    ["a write that the server refused", { isWrite: true, succeeded: false }],
    ["a sync", { isWrite: false, succeeded: true }],
  ])("%s proves nothing", async (_what, reply) => {
    const scene = new Scene();
    scene.connect();
    await scene.ping();
    await scene.clock.advance(C * 2);
    await scene.answered(reply);
    expect(scene.liveness.provedAtMs).toBe(Number.NEGATIVE_INFINITY);
  });

  test("touches of an earlier connection are not proved by a write on the next one", async () => {
    const scene = new Scene();
    const first = scene.connect();
    await scene.clock.advance(50);
    await scene.write();
    await scene.clock.advance(1_000);
    await scene.ping();
    const connectedAtMs = 50 + 10 + 1_000 + 10 + C * 2;
    await scene.clock.advance(C * 2);
    scene.connect();
    expect(scene.provedAtMs).toBe(0);
    await scene.ping();
    expect(scene.provedAtMs).toBe(0);
    await scene.write();
    expect(scene.provedAtMs).toBe(connectedAtMs);
    await scene.answered({ isWrite: true, connection: { ...first, connectSentAtMs: 1e9 } });
    expect(scene.provedAtMs, "a late reply of the first connection").toBe(connectedAtMs);
  });

  test("with the store's timeout and pings, each renewal gives the whole ttl from its send", async () => {
    const scene = new Scene();
    scene.connect();
    const [ttlMs, pingMs, rttMs] = [T / TIMEOUT_PER_TTL, T / PINGS_PER_TIMEOUT, 5];
    for (let i = 1; i <= 100; i++) {
      await scene.ping(rttMs);
      await scene.clock.advance(pingMs - rttMs);
      if (i % 7 !== 0) continue;
      const sentAtMs = scene.nowMs;
      await scene.write(rttMs);
      expect(scene.provedAtMs + T).toBeGreaterThanOrEqual(sentAtMs + ttlMs);
    }
  });

  test("never beyond the rule, whatever is answered in which order", () => {
    const step: fc.Arbitrary<Step> = fc.record({
      gapMs: fc.integer({ min: 0, max: T }),
      rttMs: fc.integer({ min: 0, max: T }),
      isWrite: fc.boolean(),
      succeeded: fc.boolean(),
      reconnects: fc.integer({ min: 0, max: 9 }).map((one) => one === 0),
    });
    const run = (steps: readonly Step[]): void => {
      const liveness = new Liveness(T);
      const replies: LivenessReply[] = [];
      let nowMs = 0;
      let connection = { number: 1, server: "", connectSentAtMs: 0 };
      for (const { gapMs, rttMs, isWrite, succeeded, reconnects } of steps) {
        nowMs += gapMs;
        if (reconnects)
          connection = { ...connection, number: connection.number + 1, connectSentAtMs: nowMs };
        const reply = {
          sentAtMs: nowMs,
          answeredAtMs: nowMs + rttMs,
          connection,
          isWrite,
          succeeded,
        };
        nowMs += rttMs;
        replies.push(reply);
        liveness.replied(reply);
        expect(liveness.provedAtMs).toBe(byDefinition(replies));
      }
    };
    fc.assert(fc.property(fc.array(step, { maxLength: 40 }), run), { seed: 7 });
  });
});

/** The rule in its own words, slowly. */
function byDefinition(replies: readonly LivenessReply[]): number {
  const proofs = replies.filter(({ isWrite, succeeded }) => isWrite && succeeded);
  return Math.max(
    Number.NEGATIVE_INFINITY,
    ...proofs.flatMap(({ connection, sentAtMs: w }) => [
      connection.connectSentAtMs,
      ...replies
        .filter((one) => one.connection.number === connection.number)
        .filter((one) => one.sentAtMs <= w - C && one.answeredAtMs <= w - C)
        .map(({ sentAtMs }) => sentAtMs),
    ]),
  );
}
