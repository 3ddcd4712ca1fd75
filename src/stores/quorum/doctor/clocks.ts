import { danger, type Finding, ok, unknown } from "../../../doctor/finding.js";
import { CLOCK_MS } from "../../../doctor/measures.js";
import type { NodeReport } from "./node.js";

/**
 * Compares the clocks of the nodes with each other; the clock of this machine does not matter. A proposed number may
 * differ from a node's clock by at most a quarter of maxTtl.
 */
export function judgeClocks(reports: readonly NodeReport[], maxTtlMs: number): Finding {
  const read = reports.flatMap(({ where, clock }) =>
    typeof clock === "string" ? [] : [{ where, ...clock }],
  );
  if (read.length < reports.length || read.length === 0) {
    const why = reports.map(({ clock }) => clock).find((clock) => typeof clock === "string");
    return unknown("clock", `how far the clocks of the nodes differ (${why})`);
  }
  const sorted = [...read].sort((a, b) => a.aheadMs - b.aheadMs);
  const [lowest, highest] = [sorted[0]!, sorted.at(-1)!];
  const medianMs = sorted[sorted.length >> 1]!.aheadMs;
  const unsureMs = lowest.unsureMs + highest.unsureMs;
  const spreadMs = highest.aheadMs - lowest.aheadMs;
  const surelyMs = spreadMs - unsureMs;
  const text = `the clocks of the nodes differ by up to ${Math.round(spreadMs)} ms (± ${Math.ceil(unsureMs)} ms)`;
  if (surelyMs <= Math.min(CLOCK_MS, maxTtlMs / 4)) return ok("clock", text);
  const away = [lowest, highest]
    .map(({ where, aheadMs }) => ({ where, offMs: aheadMs - medianMs }))
    .filter(({ offMs }) => Math.abs(offMs) > surelyMs / 2);
  const who = away.map(({ where, offMs }) => {
    const by = `${(Math.abs(offMs) / 1_000).toFixed(1)} s`;
    return `${where} is ${by} ${offMs > 0 ? "ahead of" : "behind"} the median`;
  });
  const consequences = [
    "when a clock is set forward, the leases of that node end early, and a name that is held can be granted again",
  ];
  if (surelyMs > maxTtlMs / 4) {
    consequences.push(
      `beyond a quarter of maxTtl (${maxTtlMs / 4_000} s) a node records other numbers than the rest, and its vote is lost`,
    );
  }
  if (surelyMs > maxTtlMs / 2) {
    consequences.push(
      `beyond half of maxTtl (${maxTtlMs / 2_000} s) tokens can fall after a node has lost its data`,
    );
  }
  return danger(
    "clock",
    `${text}; ${who.join(", ")}: ${consequences.join("; ")}`,
    "Keep the clocks of all nodes in step (NTP), by slewing, not by jumps.",
  );
}
