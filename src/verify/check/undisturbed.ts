import type { Event, EventOf } from "./history.js";
import type { Operation, Run } from "./operations.js";
import { who } from "./operations.js";
import type { Finding, Limits, Violation } from "./verdict.js";

/** How long after its end a fault may still have effects. */
const AFTERMATH_MS = 2_500;

/** L6: a client that is not disturbed keeps its lease until it releases it, and sees no outage. */
export function undisturbed(run: Run, { complete }: Limits): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const op of complete ? run.operations.values() : []) {
    const wrong = complaint(op);
    const until = wrong ?? op.releasing ?? op.notGranted;
    if (until === undefined || isDisturbed(run, op, until)) continue;
    checked++;
    if (wrong === undefined) continue;
    violations.push({
      atMs: wrong.atMs,
      why: `nothing disturbed ${who(op)}, and at ${run.at(wrong.atMs)} its ${JSON.stringify(op.asked.name)} was ${wrong.kind === "not-granted" ? "reported as unavailable" : "no longer held"}`,
      evidence: [op.asked, ...(op.granted ? [op.granted] : []), wrong],
    });
  }
  return {
    checked,
    violations,
    lacks: complete
      ? "every client was disturbed"
      : "the history may not contain everything that disturbs a client",
  };
}

/** An event that should not happen without a disturbance, if there is one. */
function complaint({ asked, notGranted, granted, course, group }: Operation): Event | undefined {
  // A forced release or `renew: false` at one name costs all names of a multi-lock.
  if (asked.renew === false || group.some((one) => one.revocations.length > 0)) return undefined;
  if (notGranted?.outcome === "unknown") return notGranted;
  for (const event of granted === undefined ? [] : course) {
    if (event.kind === "releasing") return undefined;
    if (event.kind === "lost") return isItsOwn(event) ? event : undefined;
    if (event.kind === "looked" && !event.held) return event;
  }
  return undefined;
}

/** `together`: the other name is judged. `max-hold` and `closed` are the client's own decision. */
const isItsOwn = ({ reason }: EventOf<"lost">): boolean =>
  reason !== "max-hold" && reason !== "closed" && reason !== "together";

function isDisturbed(run: Run, { asked, killed }: Operation, until: Event): boolean {
  const fromMs = asked.atMs - AFTERMATH_MS;
  return (
    killed !== undefined ||
    run.faults.touches(fromMs, until.atMs) ||
    run.pausesOf(asked.client).touches(fromMs, until.atMs)
  );
}
