import type { Lease } from "../../../core/lease.js";
import type { Locks } from "../../../locks.js";
import type { Performer } from "../performer.js";
import type { Lead } from "../protocol.js";
import type { Part } from "../taken.js";

/** Leads term after term until it is aborted, and returns the number of terms. Each term is an op of its own. */
export async function lead(
  performer: Performer,
  locks: Locks,
  op: string,
  { name, pauseMs, options = {} }: Lead,
): Promise<number> {
  const wanted = { note: op, ...options };
  const election = locks.election(name, wanted);
  const campaign = { ...wanted, elected: true };
  let terms = 0;
  const nextTerm = (): Part => ({ op: `${op}.${terms + 1}`, name });
  const serve = async (lease: Lease, stop: AbortSignal): Promise<void> => {
    const term = nextTerm();
    terms++;
    performer.granted(op);
    await performer.holdDuring(locks, term, lease, async () => {
      while (!stop.aborted) {
        // A refused write means that another candidate leads; this one is about to be notified of
        // its loss.
        if (!(await performer.use(term.op, pauseMs))) await aborted(stop);
      }
    });
    if (lease.signal.aborted) performer.requested(op, [nextTerm()], campaign);
  };
  await performer.request(op, [nextTerm()], campaign, async (signal) => {
    await election.runAsLeader(serve, { signal }).catch((error) => {
      if (!signal.aborted) throw error;
      performer.notGranted(op, "aborted");
    });
  });
  return terms;
}

const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
