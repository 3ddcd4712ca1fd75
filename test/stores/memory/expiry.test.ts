import { expect, test } from "vitest";
import { clients, crash } from "../../primitives/clients.js";

/** Much longer than the holder's: a waiter renews its ticket once in 10 s. */
const WAITER_TTL_MS = 30_000;

test("a holder renews to a shorter ttl and dies: the next waiter is granted when that ttl has passed", async () => {
  const { clock, on } = clients({ ttl: WAITER_TTL_MS });
  const holder = on("holder");
  const lease = await holder.locks.acquire("job", { ttl: 60_000, renew: false });
  const waiting = on("waiter").locks.acquire("job");
  await clock.advance(1_000);
  await lease.renew(2_000);
  crash(holder);
  const diedAtMs = clock.elapsedMs();
  let grantedAfterMs = Number.NaN;
  waiting.then(() => {
    grantedAfterMs = clock.elapsedMs() - diedAtMs;
  });
  await clock.advance(20_000);
  expect(grantedAfterMs).toBe(2_000);
});

test("a holder with atLeast releases early: the next waiter is granted when the name opens", async () => {
  const { clock, on } = clients({ ttl: WAITER_TTL_MS });
  const startedAtMs = clock.elapsedMs();
  const lease = await on("holder").locks.acquire("job", { atLeast: 2_000 });
  const waiting = on("waiter").locks.acquire("job");
  await clock.advance(500);
  await lease.release();
  let grantedAfterMs = Number.NaN;
  waiting.then(() => {
    grantedAfterMs = clock.elapsedMs() - startedAtMs;
  });
  await clock.advance(20_000);
  expect(grantedAfterMs).toBe(2_000);
});
