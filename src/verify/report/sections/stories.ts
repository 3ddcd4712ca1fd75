import type { CheckResult } from "../../runner/result.js";
import { html, type Markup } from "../html.js";
import type { Model } from "../model.js";
import { type StoryLine, storyLines } from "../story.js";
import { count, counted, describeEvent, duration, sentence } from "../words.js";

/** The evidence of each broken check, as a table of sentences. It is also the text alternative of the time lines. */
export function storiesSection(model: Model): Markup | undefined {
  if (model.broken.length === 0) return undefined;
  return html`<section id="stories">
<h2>Evidence</h2>
<p class="note">The numbered events show the break. The others are what happened to the same workers and the store meanwhile.</p>
${model.broken.map((check) => story(model, check))}</section>
`;
}

function story(model: Model, check: CheckResult): Markup {
  const { id, verdict, promise, evidence } = check;
  const lines = storyLines(model, check);
  const left = evidence.length - lines.filter(({ number }) => number !== undefined).length;
  return html`<article class="story ${verdict}" id="story-${id}">
<h3><span class="tag">${id}</span> ${promise}</h3>
<p>${lead(check)} <a href="#time-lines" data-jump="${id}">Show on the time line</a></p>
<div class="scroll"><table>
<caption class="hidden">Evidence of ${id}</caption>
<thead><tr><th scope="col">#</th><th scope="col" class="number">time</th><th scope="col" class="number">later by</th><th scope="col">who</th><th scope="col">event</th></tr></thead>
<tbody>${lines.map((line, i) => row(model, line, lines[i - 1]))}</tbody>
</table></div>
${left === 0 ? undefined : html`<p class="note">${counted(left, "earlier event")} of the evidence can be seen on the time line only.</p>`}
</article>
`;
}

function lead({ verdict, why, expected }: CheckResult): string {
  if (verdict === "violated") return sentence(why);
  const seen = expected === 1 ? "once" : `${count(expected)} times, and this is the first`;
  return `${sentence(why)} The store does not promise this under the fault that was active; it was seen ${seen}.`;
}

function row(model: Model, { event, number }: StoryLine, before: StoryLine | undefined): Markup {
  const { subject, predicate } = describeEvent(event, model.runAt(event.atMs), model.at);
  const later = before === undefined ? "" : `+${duration(event.atMs - before.event.atMs)}`;
  const isEvidence = number !== undefined;
  return html`<tr class="${isEvidence ? "evidence" : "context"}"><td class="mark">${isEvidence ? html`<span>${number}</span>` : undefined}</td><td class="number">${model.at(event.atMs)}</td><td class="number later">${later}</td><td class="who">${subject}</td><td>${predicate}</td></tr>
`;
}
