import type { Event } from "../../check/history.js";
import type { CheckResult } from "../../runner/result.js";
import { html, type Markup } from "../html.js";
import type { Model } from "../model.js";
import { describeEvent, duration, sentence } from "../words.js";

/** A story is read in a minute: of longer evidence the last events are told, which show the break. */
const MOST_EVENTS = 14;

/** The evidence of each broken check as a table in plain words. Also the text alternative of the time lines. */
export function storiesSection(model: Model): Markup | undefined {
  if (model.told.length === 0) return undefined;
  return html`<section id="stories">
<h2>Evidence</h2>
${model.told.map((check) => story(model, check))}</section>
`;
}

function story(
  model: Model,
  { id, verdict, promise, why, evidence, expected }: CheckResult,
): Markup {
  const isViolated = verdict === "violated";
  const left = Math.max(0, evidence.length - MOST_EVENTS);
  const shown = evidence.slice(left);
  const lead = isViolated
    ? sentence(why)
    : `${sentence(why)} The store does not promise this under the fault that was in force; it was seen ${expected === 1 ? "once" : `${expected} times, and this is the first`}.`;
  return html`<article class="story ${verdict}" id="story-${id}">
<h3><span class="tag">${id}</span> ${promise}</h3>
<p>${lead} <a href="#time-lines" data-jump="${id}">Show on the time line</a></p>
<div class="scroll"><table>
<caption class="hidden">Evidence of ${id}</caption>
<thead><tr><th scope="col">#</th><th scope="col" class="number">time</th><th scope="col" class="number">later by</th><th scope="col">who</th><th scope="col">event</th></tr></thead>
<tbody>${shown.map((event, i) => line(model, event, left + i + 1, shown[i - 1]))}</tbody>
</table></div>
${left === 0 ? undefined : html`<p class="note">${left} earlier events are left out here; the time line has them.</p>`}
</article>
`;
}

function line(model: Model, event: Event, number: number, before: Event | undefined): Markup {
  const { subject, predicate } = describeEvent(event, model.runAt(event.atMs), model.at);
  const later = before === undefined ? "" : `+${duration(event.atMs - before.atMs)}`;
  return html`<tr><td class="mark"><span>${number}</span></td><td class="number">${model.at(event.atMs)}</td><td class="number later">${later}</td><td class="who">${subject}</td><td>${predicate}</td></tr>
`;
}
