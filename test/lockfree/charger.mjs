// Carries out payments as they are delivered: one charge at the provider for each key.
// Usage: node charger.mjs URL PROVIDER TTL; each line of its input is a delivery, "ID KEY".
// Prints "ID RECEIPT" for each, and "lost" when a lease is lost while it charges.
import { createInterface } from "node:readline";
import { connect } from "holdfast";
import { idempotent } from "holdfast/lockfree";

const [url, provider, ttl] = process.argv.slice(2);
const locks = await connect(url, { ttl, wait: "100s" });
const say = (text) => process.stdout.write(`${text}\n`);

async function charge(key, lease) {
  lease.on("lost", () => say("lost"));
  const headers = { "idempotency-key": key, worker: String(process.pid) };
  const response = await fetch(provider, { method: "POST", headers });
  return response.text();
}

async function deliver(id, key) {
  for (;;) {
    try {
      say(`${id} ${await idempotent(locks, key, { keep: "1h" }, (lease) => charge(key, lease))}`);
      return;
    } catch (error) {
      // As a queue does: it delivers again what was not acknowledged.
      if (error.retryable !== true) throw error;
    }
  }
}

say("ready");
for await (const line of createInterface({ input: process.stdin })) deliver(...line.split(" "));
