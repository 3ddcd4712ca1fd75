// A worker that pays out orders, one worker at a time, and may be told to stop at any moment: by
// SIGTERM, or because its lease is lost. Run `node examples/shutdown.mjs`; stop it with Ctrl-C or kill.
import { setTimeout as sleep } from "node:timers/promises";
import { connect, HoldfastError } from "holdfast";

const locks = await connect(process.env.HOLDFAST_STORE ?? "memory:", {
  ttl: "10s",
  // When the process is asked to end: all signals abort, work has 3 s to stop, then its names are
  // given back and the process ends by the signal. Other workers need not wait for the ttl.
  releaseOnExit: { grace: "3s" },
});

async function payOut(order, lease) {
  // Pass the signal on: whatever takes time stops when the lease is over.
  const amount = await calculate(order, { signal: lease.signal });
  // Look again before what can't be undone. A signal comes by a timer, which a stalled process
  // gets late; assertHeld reads the clock.
  lease.assertHeld();
  // From here on it is quick, and goes through. The token is for the bank: it refuses one that is
  // lower than it has seen, if all of this was too slow after all.
  await pay(order, amount, lease.token);
}

async function work(lease) {
  console.log(`took over with token ${lease.token}`);
  try {
    for (let order = 1; ; order++) await payOut(order, lease);
  } finally {
    // Tidy up only what is this worker's own: what is shared may be another's by now.
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
    // Lost: stand in line again. Anything else, and CLOSED on the way out, is the end.
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
