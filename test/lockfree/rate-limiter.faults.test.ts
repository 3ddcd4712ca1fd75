import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { connect } from "../../src/index.js";
import { limitFetch, type RateLimiterOptions, rateLimiter } from "../../src/lockfree/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { rejection } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import { freshFile } from "../support/sqlite.js";
import { Child } from "./child.js";

const PROCESSES = 8;

/** Tests on one server share its data: each has a limiter of its own. */
const nameOf = ({ limit }: RateLimiterOptions): string => `limit ${limit}`;

interface Counts {
  readonly calls: number;
  readonly units: number;
  readonly mistakes: number;
}

/** Lets many processes take at once; resolves to what they were allowed together. */
async function contend(url: string, options: RateLimiterOptions, forMs: number): Promise<Counts> {
  const args = [url, nameOf(options), JSON.stringify(options), String(forMs)];
  const takers = await Promise.all(
    Array.from({ length: PROCESSES }, () => Child.start("taker.mjs", args)),
  );
  for (const taker of takers) taker.go();
  const counts = await Promise.all(takers.map((taker) => taker.result<Counts>()));
  const sum = (of: keyof Counts): number => counts.reduce((all, one) => all + one[of], 0);
  return { calls: sum("calls"), units: sum("units"), mistakes: sum("mistakes") };
}

function exactUnderContention(urlOf: () => string): void {
  test("many processes take a burst exactly", async () => {
    const url = urlOf();
    const options = { limit: 1, per: "1h", burst: 100 } as const;
    const { units, mistakes } = await contend(url, options, 1_000);
    // Each process asks for single units too, so nothing is left.
    expect([units, mistakes]).toEqual([100, 0]);
  });

  test("many processes take what comes back, to the unit", async () => {
    const url = urlOf();
    const locks = await connect(url);
    onTestFinished(() => locks.close());
    const options = { limit: 20, per: "1s", burst: 1_000 } as const;
    const unitMs = 50;
    const limiter = rateLimiter(locks, nameOf(options), options);
    // It would be full again after 50 s, and the processes take before that.
    const sentMs = performance.now();
    expect((await limiter.take(1_000)).allowed).toBe(true);
    const repliedMs = performance.now();
    const { units, mistakes, calls } = await contend(url, options, 2_000);
    expect(mistakes).toBe(0);
    expect(calls).toBeGreaterThan(units);
    const lastSentMs = performance.now();
    const { fullInMs } = await limiter.take(0);
    const lastRepliedMs = performance.now();
    // By the algorithm, it is full (1,000 + units) × 50 ms after the first take: a unit too many or too few shows.
    const passedMs = (1_000 + units) * unitMs - fullInMs;
    expect(passedMs).toBeGreaterThan((lastSentMs - repliedMs) * 0.999 - 5);
    expect(passedMs).toBeLessThan((lastRepliedMs - sentMs) * 1.001 + 5);
  });
}

describe("on SQLite", () => {
  exactUnderContention(() => `sqlite:${freshFile()}`);
});

for (const kind of ["redis", "postgres"] as const) {
  describeWith([kind], `on ${kind}`, () => {
    let lab: Lab;
    let server: Awaited<ReturnType<Lab[typeof kind]>>;
    beforeAll(async () => {
      lab = await Lab.open();
    }, 60_000);
    afterAll(() => lab.close());

    describe("exact", () => {
      beforeAll(async () => {
        server = await lab[kind]();
      }, 60_000);
      exactUnderContention(() => server.url);
    });

    test("a server that is gone fails closed or open by choice, and counts again when it is back", async () => {
      // Redis would lose what it has counted if it did not sync every write.
      const stopped =
        kind === "redis" ? await lab.redis({ persistence: "always" }) : await lab[kind]();
      const locks = await connect(stopped.url, { commandTimeout: "1s" });
      onTestFinished(() => locks.close().catch(() => {}));
      const numbers = { limit: 3, per: "1h" } as const;
      const closed = rateLimiter(locks, "name", numbers);
      const open = rateLimiter(locks, "name", { ...numbers, onUnavailable: "allow" });
      const key = (): string => "all";
      const handler = limitFetch(locks, { ...numbers, key }, () => new Response("fine"));
      expect((await closed.take()).allowed).toBe(true);
      await stopped.kill();
      expect(await rejection(closed.take())).toMatchObject({ code: "STORE_UNAVAILABLE" });
      expect(await open.take()).toMatchObject({ allowed: true, unavailable: true });
      expect((await handler(new Request("http://service/"))).status).toBe(503);
      await stopped.start();
      await expect
        .poll(async () => (await open.take(0)).unavailable, { timeout: 20_000 })
        .toBe(false);
      // Nothing was counted during the outage. PostgreSQL may forget the last takes before a crash.
      let units = 0;
      while (units < 10 && (await (units % 2 === 0 ? open : closed).take()).allowed) units++;
      expect(kind === "redis" ? [2] : [2, 3]).toContain(units);
      expect(await closed.take()).toMatchObject({ allowed: false, remaining: 0 });
      expect((await handler(new Request("http://service/"))).status).toBe(200);
    });
  });
}
