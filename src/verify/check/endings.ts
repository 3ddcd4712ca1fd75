import type { EventOf } from "./history.js";
import { endOfWait, listIn, type Run, who } from "./operations.js";
import { firstIndex } from "./spans.js";
import type { Finding, Limits, Violation } from "./verdict.js";

/** L3: an abort and a timeout end the wait, and a client that closed has nothing left. */
export function endings(run: Run, { endMs, commandMs }: Limits): Finding {
  const violations: Violation[] = [];
  let checked = 0;
  for (const op of run.operations.values()) {
    const { asked, aborting } = op;
    const waitMs = asked.waitMs === 0 ? commandMs : asked.waitMs;
    const causes = [
      { fromMs: asked.atMs + waitMs, what: `with a wait of ${asked.waitMs} ms`, events: [asked] },
      ...(aborting === undefined
        ? []
        : [{ fromMs: aborting.atMs, what: "and was aborted", events: [asked, aborting] }]),
    ];
    const end = endOfWait(op);
    for (const { fromMs, what, events } of causes) {
      // A multi-lock claims each remaining name once more when its time is over.
      const graceMs =
        endMs * op.group.length + run.frozenOf(asked.client).coverMs(asked.atMs, fromMs);
      const dueMs = run.pausesOf(asked.client).graceAfter(fromMs, graceMs);
      const late = end ?? run.after(dueMs);
      if (late === undefined) continue;
      checked++;
      if (late.atMs <= dueMs) continue;
      violations.push({
        atMs: late.atMs,
        why: `${who(op)} requested ${JSON.stringify(asked.name)} at ${run.at(asked.atMs)} ${what}, which should have ended it by ${run.at(dueMs)}; it waited until ${run.at(late.atMs)}${end ? "" : " or longer"}`,
        evidence: [...events, late],
      });
      break;
    }
  }
  const closed = new Map<string, EventOf<"left">[]>();
  for (const left of run.events) {
    if (left.kind !== "left") continue;
    checked++;
    const { waiters, timers, sockets } = left;
    if (waiters + timers + sockets > 0) {
      violations.push({
        atMs: left.atMs,
        why: `${left.client} had closed and still had ${waiters} waiters, ${timers} timers and ${sockets} sockets`,
        evidence: [left],
      });
    }
    listIn(closed, left.client).push(left);
  }
  for (const op of run.operations.values()) {
    const lefts = closed.get(op.asked.client) ?? [];
    const left = lefts[firstIndex(lefts, ({ atMs }) => atMs >= op.asked.atMs)];
    const held = left && op.beliefs.find(({ toMs }) => toMs > left.atMs);
    if (held === undefined) continue;
    violations.push({
      atMs: Math.max(left!.atMs, held.fromMs),
      why: `${left!.client} had closed at ${run.at(left!.atMs)}, and ${who(op)} held ${JSON.stringify(op.asked.name)} with token ${op.granted?.token} until ${run.at(held.toMs)}`,
      evidence: [op.asked, op.granted!, left!],
    });
  }
  return { checked, violations, lacks: "no wait ended, and no client reported what it left" };
}
