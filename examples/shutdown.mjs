// A worker that pays out orders, one worker at a time. It stops in good order when it gets SIGTERM,
// and when its lease is lost. Run `node examples/shutdown.mjs`; stop it with Ctrl-C or kill.
import { setTimeout as sleep } from "node:timers/promises";
import { connect, HoldfastError } from "holdfast";

const locks = await connect(process.env.HOLDFAST_STORE ?? "memory:", {
  ttl: "10s",
  // On SIGTERM, all signals abort, work has 3 s to stop, then its names are released and the process
  // ends. Other workers need not wait for the ttl.
  releaseOnExit: { grace: "3s" },
});

async function payOut(order, lease) {
  // Pass the signal on: work that takes time stops when the lease is lost.
  const amount = await calculate(order, { signal: lease.signal });
  // Check again before an effect that can't be undone. The signal aborts by a timer, which is late
  // in a stalled process; assertHeld reads the clock.
  lease.assertHeld();
  // The payment is quick and is not interrupted. The token is for the bank: if all of this was too
  // slow after all, the bank refuses a token below the highest that it has seen.
  await pay(order, amount, lease.token);
}

async function work(lease) {
  console.log(`took over with token ${lease.token}`);
  try {
    for (let order = 1; ; order++) await payOut(order, lease);
  } finally {
    // Clean up only what belongs to this worker: shared things may be in use by the next one.
    await sleep(100);
    console.log(`tidied up; the lease is ${lease.state}`);
  }
}

for (;;) {
  try {
    await locks.withLock("payouts", { wait: Number.POSITIVE_INFINITY }, work);
  } catch (error) {
    if (!HoldfastError.is(error)) throw error;
    console.log(`${error.code}: ${error.message}`);
    // After a loss, queue again. Any other error ends the worker, also CLOSED after SIGTERM.
    if (error.code !== "LEASE_LOST") break;
  }
}

async function calculate(order, { signal }) {
  await sleep(200, undefined, { signal });
  return order * 10;
}

async function pay(order, amount, token) {
  console.log(`order ${order}: paid ${amount}, token ${token}`);
}
