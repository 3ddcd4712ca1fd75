import type { Event, EventOf } from "./history.js";
import type { Operation, Run } from "./operations.js";
import { who } from "./operations.js";
import type { Finding, Limits, Violation } from "./verdict.js";

/** What a fault may still cause after its end. */
const AFTERMATH_MS = 2_500;

/** L6: who is not disturbed keeps its lease until it gives it back, and is not told of an outage. */
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
      why: `nothing disturbed ${who(op)}, and at ${run.at(wrong.atMs)} its ${JSON.stringify(op.asked.name)} was ${wrong.kind === "not-granted" ? "told as unavailable" : "no longer held"}`,
      evidence: [op.asked, ...(op.granted ? [op.granted] : []), wrong],
    });
  }
  return {
    checked,
    violations,
    lacks: complete
      ? "nobody was left undisturbed"
      : "the history may not tell all that disturbs a client",
  };
}

/** What should not happen by itself. */
function complaint({ asked, notGranted, granted, course, group }: Operation): Event | undefined {
  // Taken by force, or never renewed: with one of several names, all are lost, or not had at all.
  if (asked.renew === false || group.some((one) => one.revocations.length > 0)) return undefined;
  if (notGranted?.outcome === "unknown") return notGranted;
  for (const event of granted === undefined ? [] : course) {
    if (event.kind === "releasing") return undefined;
    if (event.kind === "lost") return isItsOwn(event) ? event : undefined;
    if (event.kind === "looked" && !event.held) return event;
  }
  return undefined;
}

/** `together`: the other one is judged. `max-hold` and `closed` are the client's own doing. */
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
