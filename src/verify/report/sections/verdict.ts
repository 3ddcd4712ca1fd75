import type { Result } from "../../runner/result.js";
import { html, type Markup } from "../html.js";
import type { Model } from "../model.js";
import { count, counted, duration, faultsOf, headline, listed, unseenOf } from "../words.js";

const SIGNS: Readonly<Record<Result["outcome"], Markup>> = {
  held: html`<path d="M8.5 16.5l5 5 10-11"/>`,
  violated: html`<path d="M10 10l12 12M22 10L10 22"/>`,
  unknown: html`<path d="M9 16h14"/>`,
};

/** The verdict in words, the figures of the run, and the command that repeats it. */
export function verdictSection({ result, workers }: Model): Markup {
  const facts: readonly (readonly [string, string])[] = [
    ["time", duration(result.lastedMs)],
    ["workers", count(workers.length)],
    ["operations", count(result.operations)],
    ["grants", count(result.grants)],
    ["faults", count(result.faults)],
    ["seed", String(result.seed)],
  ];
  return html`<header class="verdict ${result.outcome}">
<p class="eyebrow">holdfast verify <span>${result.target}</span></p>
<h1><svg viewBox="0 0 32 32" aria-hidden="true"><circle cx="16" cy="16" r="15"/>${SIGNS[result.outcome]}</svg>${headline(result)}</h1>
<p class="lead">${lead(result)}</p>
<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
<div class="command"><code id="command">${result.command}</code><button type="button" id="copy">Copy</button></div>
<p class="small">${date(result.startedAt)}${Object.entries(result.versions).map(
    ([name, version]) => html` <span class="version">${name} ${version}</span>`,
  )}</p>
</header>`;
}

function lead(result: Result): string {
  const { outcome, about, checks, faults, failedFaults } = result;
  const under = faults + failedFaults === 0 ? "without faults" : `under ${faultsOf(result)}`;
  const expected = checks.filter(({ verdict }) => verdict === "expected").length;
  const broken = checks.filter(({ verdict }) => verdict === "violated").map(({ id }) => id);
  const more =
    expected === 0
      ? ""
      : ` ${counted(expected, "check was", "checks were")} broken where the store does not promise it.`;
  const unseen = unseenOf(result);
  const untested = unseen.length === 0 ? "" : ` Not seen: ${listed(unseen)}.`;
  if (outcome === "held") return `${capital(about)}, ${under}.${more}${untested}`;
  if (outcome === "violated") {
    return `${capital(about)}, ${under}: ${listed(broken)} ${broken.length === 1 ? "is" : "are"} violated.${more}`;
  }
  return `${capital(about)}, ${under}. No promise was broken, but too little happened to say that every promise held.${more}`;
}

const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

const MONTHS =
  "January February March April May June July August September October November December";

/** "17 November 2026, 04:49 UTC"; a text that is not a date stays unchanged. */
function date(iso: string): string {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return iso;
  const month = MONTHS.split(" ")[at.getUTCMonth()];
  return `${at.getUTCDate()} ${month} ${at.getUTCFullYear()}, ${at.toISOString().slice(11, 16)} UTC`;
}
