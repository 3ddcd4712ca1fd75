import { hasStruck } from "../../runner/result.js";
import { html, type Markup } from "../html.js";
import {
  handoversOf,
  jain,
  quantile,
  sharesOf,
  type Wait,
  type WaitOutcome,
  waitsOf,
} from "../measures.js";
import type { Model } from "../model.js";
import { Axes, decadeBins, type Histogram, px } from "../plot.js";
import { count, counted, duration, percent } from "../words.js";

const OUTCOMES: readonly (readonly [WaitOutcome, string])[] = [
  ["granted", "granted"],
  ["timeout", "timeout"],
  ["other", "busy, aborted, killed or no reply"],
];

/** Small plots of waiting, fairness and handovers. */
export function plotsSection(model: Model): Markup | undefined {
  const waits = waitsOf(model);
  if (waits.length === 0) return undefined;
  const plots = [
    figure("Waiting time", "How long acquires waited, by outcome.", waitingPlot(waits)),
    figure(
      "Waiting time over the run",
      "Each dot is one acquire, at the moment of the request. Faults are shaded, those of the store more strongly.",
      overTimePlot(model, waits),
    ),
    fairnessFigure(model),
    handoverFigure(model),
  ];
  return html`<section id="plots">
<h2>Waiting, fairness, handover</h2>
<div class="plots">${plots}</div>
</section>
`;
}

function figure(title: string, caption: string, plot: Markup): Markup {
  return html`<figure><h3>${title}</h3>${plot}<figcaption>${caption}</figcaption></figure>
`;
}

function waitingPlot(waits: readonly Wait[]): Markup {
  const groups = OUTCOMES.map(([outcome, label]) => ({
    label,
    outcome,
    values: waits.filter((one) => one.outcome === outcome).map(({ waitedMs }) => waitedMs),
  })).filter(({ values }) => values.length > 0);
  const bins = decadeBins(waits.map(({ waitedMs }) => waitedMs));
  return stackedHistograms(groups, bins);
}

/** One histogram under the other, on the same axis of time; each has its own scale of counts. */
function stackedHistograms(
  groups: readonly { label: string; outcome: string; values: readonly number[] }[],
  bins: Histogram,
): Markup {
  const rowPx = 66;
  const axes = new Axes({ heightPx: rowPx * groups.length + 30, leftPx: 34, bottomPx: 30 });
  const x = axes.logX(bins.fromMs, bins.toMs);
  const rows = groups.map(({ label, outcome, values }, i) => {
    const counts = bins.count(values);
    const most = Math.max(...counts);
    const baseY = rowPx * (i + 1);
    const barPx = rowPx - 26;
    const sorted = values.toSorted((a, b) => a - b);
    const bars = counts.map((n, k) => {
      const [from, to] = [x(bins.edges[k]!), x(bins.edges[k + 1]!)];
      const high = (n / most) * barPx;
      return n === 0
        ? undefined
        : html`<rect class="${outcome}" x="${px(from + 0.5)}" y="${px(baseY - high)}" width="${px(to - from - 1)}" height="${px(high)}"/>`;
    });
    const figures = `median ${duration(quantile(sorted, 0.5)!)}, 99th percentile ${duration(quantile(sorted, 0.99)!)}`;
    return html`<text x="34" y="${baseY - barPx - 8}"><tspan class="name">${label}</tspan> ${count(values.length)}; ${figures}</text><text class="tick end" x="30" y="${px(baseY - barPx + 7)}">${count(most)}</text><text class="tick end" x="30" y="${baseY}">0</text>${bars}<line class="axis" x1="34" x2="${axes.rightPx}" y1="${baseY}" y2="${baseY}"/>`;
  });
  return axes.svg(
    html`${rows}${axes.logTicks(bins.fromMs, bins.toMs)}`,
    "Histogram of waiting times by outcome",
  );
}

function overTimePlot(model: Model, waits: readonly Wait[]): Markup {
  const bins = decadeBins(waits.map(({ waitedMs }) => waitedMs));
  const axes = new Axes({ heightPx: 198, leftPx: 46, bottomPx: 30 });
  const x = (atMs: number): number => axes.x((atMs - model.fromMs) / (model.toMs - model.fromMs));
  const y = axes.logY(bins.fromMs, bins.toMs);
  const faults = model.faults.filter(hasStruck).map(({ hits, fromMs, untilMs }) => {
    const from = Math.max(model.fromMs, fromMs);
    const to = Math.min(model.toMs, untilMs);
    return html`<rect class="fault ${hits === "worker" || hits === "connection" ? "" : "store"}" x="${px(x(from))}" y="6" width="${px(Math.max(0.6, x(to) - x(from)))}" height="${axes.bottomY - 6}"/>`;
  });
  const dots = OUTCOMES.map(([outcome]) => {
    const places = waits
      .filter((one) => one.outcome === outcome)
      .map((one) => `M${px(x(one.askedAtMs))} ${px(y(one.waitedMs))}h0`);
    return places.length === 0
      ? undefined
      : html`<path class="dots ${outcome}" d="${[...new Set(places)].join("")}"/>`;
  });
  const labels = OUTCOMES.filter(([outcome]) => waits.some((one) => one.outcome === outcome));
  return axes.svg(
    html`${faults}${axes.logYTicks(bins.fromMs, bins.toMs)}${dots}${axes.timeTicks(model.fromMs - model.startMs, model.toMs - model.startMs)}`,
    `Waiting time over the run, by outcome: ${labels.map(([, label]) => label).join("; ")}`,
    html`<p class="keys">${labels.map(([outcome, label]) => html`<span class="key ${outcome}">${label}</span>`)}</p>`,
  );
}

function fairnessFigure(model: Model): Markup | undefined {
  const shares = sharesOf(model);
  const total = shares.reduce((sum, { grants }) => sum + grants, 0);
  const index = jain(shares.map(({ grants }) => grants));
  if (index === undefined || shares.length < 2) return undefined;
  const shown = shares.slice(0, 24);
  const rowPx = 17;
  const most = Math.max(...shares.map(({ grants }) => grants));
  const axes = new Axes({ heightPx: rowPx * shown.length + 24, leftPx: 70, bottomPx: 20 });
  const x = (grants: number): number => axes.x((grants / most) * 0.86);
  const bars = shown.map(({ worker, grants }, i) => {
    const y = i * rowPx + 4;
    const label = worker.length > 10 ? `${worker.slice(0, 9)}…` : worker;
    return html`<text class="end" x="64" y="${y + 9.5}">${label}</text><rect class="granted" x="70" y="${y}" width="${px(Math.max(0.5, x(grants) - 70))}" height="12"/><text class="tick end" x="${axes.rightPx}" y="${y + 9.5}">${percent(grants / total)}</text>`;
  });
  const evenX = px(x(total / shares.length));
  const even = html`<line class="even" x1="${evenX}" x2="${evenX}" y1="0" y2="${axes.bottomY}"/><text class="tick middle" x="${evenX}" y="${axes.bottomY + 12}">even share ${percent(1 / shares.length)}</text>`;
  return figure(
    "Share of grants",
    `Jain's index is ${index.toFixed(3)}: 1 when all workers have the same number of grants, ${(1 / shares.length).toFixed(3)} when one worker has all. A worker that was paused, killed or cut off gets less.${shares.length > shown.length ? ` The first ${shown.length} of ${count(shares.length)} workers are shown.` : ""}`,
    axes.svg(html`${bars}${even}`, "Share of grants of each worker"),
  );
}

function handoverFigure(model: Model): Markup | undefined {
  const values = handoversOf(model);
  if (values.length === 0) return undefined;
  return figure(
    "Handover",
    `From the start of a release to the next grant of the name, where the next holder waited already: ${counted(values.length, "handover")} of exclusive locks.`,
    stackedHistograms([{ label: "handovers", outcome: "granted", values }], decadeBins(values)),
  );
}
