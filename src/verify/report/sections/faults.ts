import { type FaultRecord, type Hits, hasStruck } from "../../runner/result.js";
import { html, type Markup } from "../html.js";
import type { Model } from "../model.js";
import { count, duration } from "../words.js";

const TARGETS: Readonly<Record<Hits, string>> = {
  worker: "a worker",
  connection: "a worker's connection",
  server: "a server",
  cluster: "the cluster",
  files: "files of the store",
};

/** The kinds of faults: their targets, how often each struck or did not, and its total time. */
export function faultsSection({ faults, toMs }: Model): Markup | undefined {
  if (faults.length === 0) return undefined;
  const kinds = groupByKind(faults);
  const rows = [...kinds].sort(([, a], [, b]) => b.length - a.length);
  return html`<section id="faults">
<h2>Faults</h2>
<div class="scroll"><table class="faults">
<thead><tr><th scope="col">kind</th><th scope="col">hits</th><th scope="col" class="number">times</th><th scope="col" class="number">did not strike</th><th scope="col" class="number">total time</th></tr></thead>
<tbody>${rows.map(([kind, all]) => row(kind, all, toMs))}</tbody>
</table></div>
</section>
`;
}

function groupByKind(faults: readonly FaultRecord[]): Map<string, FaultRecord[]> {
  const kinds = new Map<string, FaultRecord[]>();
  for (const fault of faults) kinds.set(fault.kind, [...(kinds.get(fault.kind) ?? []), fault]);
  return kinds;
}

function row(kind: string, all: readonly FaultRecord[], toMs: number): Markup {
  const targets = [...new Set(all.map(({ hits }) => TARGETS[hits]))].join(", ");
  const struck = all.filter(hasStruck);
  const totalMs = struck.reduce(
    (sum, { fromMs, untilMs }) => sum + Math.max(0, Math.min(untilMs, toMs) - fromMs),
    0,
  );
  return html`<tr><th scope="row">${kind}</th><td>${targets}</td><td class="number">${count(struck.length)}</td><td class="number">${count(all.length - struck.length)}</td><td class="number">${duration(totalMs)}</td></tr>`;
}
