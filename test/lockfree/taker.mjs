// Takes from a limiter for some time, without a pause, and prints what it was allowed.
// Usage: node taker.mjs URL NAME OPTIONS FOR_MS; it begins when a line arrives on its input.
import { once } from "node:events";
import { connect } from "holdfast";
import { rateLimiter } from "holdfast/lockfree";

const [url, name, options, forMs] = process.argv.slice(2);
const locks = await connect(url);
const limiter = rateLimiter(locks, name, JSON.parse(options));
process.stdout.write("ready\n");
await once(process.stdin, "data");
const endsAtMs = performance.now() + Number(forMs);
const counts = { calls: 0, units: 0, mistakes: 0 };
while (performance.now() < endsAtMs) {
  const units = 1 + (counts.calls++ % 3);
  const { allowed, remaining, retryAfterMs } = await limiter.take(units);
  if (allowed) counts.units += units;
  // A refusal must have a reason.
  else if (remaining >= units || retryAfterMs <= 0) counts.mistakes++;
}
await locks.close();
process.stdout.write(`${JSON.stringify(counts)}\n`);
process.exit(0);
