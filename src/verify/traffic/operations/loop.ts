import { setTimeout as sleep, setImmediate as turn } from "node:timers/promises";
import type { Locks } from "../../../locks.js";
import type { Performer } from "../performer.js";
import type { Loop } from "../protocol.js";

let loops = 0;

/** Acquires, uses and releases in a loop, and returns the number of grants. */
export async function loop(performer: Performer, locks: Locks, wanted: Loop): Promise<number> {
  const { name, holdMs, options = {}, writes = false } = wanted;
  const { forMs = Number.POSITIVE_INFINITY, rounds = Number.POSITIVE_INFINITY } = wanted;
  const untilMs = performance.now() + forMs;
  const number = ++loops;
  let granted = 0;
  for (let i = 0; i < rounds && performance.now() < untilMs; i++) {
    const op = `${performer.client}.loop${number}.${i}`;
    try {
      await performer.acquire(locks, op, name, options);
    } catch {
      // The failure is reported. If the store is down, the next attempt follows after a pause.
      await sleep(10);
      continue;
    }
    granted++;
    if (writes) await performer.write(op, holdMs);
    else await (holdMs > 0 ? sleep(holdMs) : turn());
    performer.look(op);
    await performer.release(op);
  }
  return granted;
}
