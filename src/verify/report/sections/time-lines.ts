import { html, type Markup } from "../html.js";
import type { Model } from "../model.js";
import { count } from "../words.js";

/** The number of colours in the style sheet. */
const COLOURS = 8;

/** The signs of the time lines, as the canvas draws them. */
const LEGEND: readonly (readonly [string, Markup])[] = [
  ["held alone", html`<rect class="bar" x="1" y="3" width="22" height="12"/>`],
  ["shared, permits", html`<rect class="bar light" x="1" y="3" width="22" height="12"/>`],
  ["waiting", html`<rect class="bar light" x="1" y="8" width="22" height="2.5"/>`],
  [
    "fault",
    html`<rect class="fault" x="1" y="2" width="22" height="14"/><rect class="edge" x="1" y="2" width="22" height="2"/>`,
  ],
  ["paused", html`<path class="line thin" d="M2 16L14 2M8 16L20 2M14 16L23 5.5"/>`],
  ["killed", html`<path class="line" d="M8 5l8 8m0-8l-8 8"/>`],
  ["lease lost", html`<path class="ink" d="M7 5h10l-5 8z"/>`],
  [
    "write refused by the fence",
    html`<circle class="line thin" cx="12" cy="9" r="5"/><path class="line thin" d="M9 12l6-6"/>`,
  ],
  ["evidence", html`<circle class="bad" cx="12" cy="9" r="7"/><text x="12" y="12.2">1</text>`],
];

/** The frame of the time lines; the browser draws into it. */
export function timeLinesSection({ operations, broken, names, workers }: Model): Markup {
  const summary = `Time lines of ${count(operations.length)} operations by ${count(workers.length)} workers on ${count(names.length)} names.`;
  return html`<section id="time-lines" data-by="worker">
<h2>Time lines</h2>
<p class="note">A bar is a time in which a worker believed that it held a name. <span class="when-worker">Its colour is the name: two solid bars of one name at the same time would break S1.</span><span class="when-name">Its colour is the worker: two solid bars in one lane at the same time would break S1.</span></p>
<div class="toolbar">
<fieldset class="switch"><legend class="hidden">Lanes</legend><label><input type="radio" name="lanes" value="worker" checked><span>Workers</span></label><label><input type="radio" name="lanes" value="name"><span>Names</span></label></fieldset>
<div class="buttons"><button type="button" data-zoom="out" aria-label="Zoom out">−</button><button type="button" data-zoom="in" aria-label="Zoom in">+</button><button type="button" data-zoom="all">All</button></div>
${broken.length === 0 ? undefined : html`<div class="buttons stories" role="group" aria-label="Evidence">${broken.map(({ id, verdict }) => html`<button type="button" class="${verdict}" data-jump="${id}">${id}</button>`)}</div>`}
<span class="range" aria-live="off"></span>
</div>
<div class="stage" tabindex="0" role="application" aria-label="${summary} Keys: plus and minus zoom, left and right move, up and down step through the operations, 0 shows all. The tables below show the same evidence as text."><canvas class="lanes" aria-hidden="true"></canvas><div class="tip" role="status" hidden></div></div>
<canvas class="minimap" aria-hidden="true"></canvas>
${colours("when-worker", "Names", names)}${colours("when-name", "Workers", workers)}<ul class="legend" aria-label="Signs">${LEGEND.map(([name, sign]) => html`<li><svg viewBox="0 0 24 18" aria-hidden="true">${sign}</svg>${name}</li>`)}</ul>
<p class="note keys">Zoom: Ctrl + wheel, pinch, <kbd>+</kbd> <kbd>−</kbd>. Move: drag, <kbd>←</kbd> <kbd>→</kbd>. Details: hover, tap, <kbd>↑</kbd> <kbd>↓</kbd>.</p>
<noscript><p class="note">The time lines need JavaScript. The tables below show the evidence without it.</p></noscript>
</section>
`;
}

const MOST_COLOURS = 16;

/** The legend of colours: one for each name or worker. */
function colours(when: string, label: string, all: readonly string[]): Markup {
  const left = all.length - MOST_COLOURS;
  return html`<ul class="legend colours ${when}" aria-label="${label}">${all
    .slice(0, MOST_COLOURS)
    .map(
      (one, i) => html`<li class="colour-${i % COLOURS}">${one}</li>`,
    )}${left > 0 ? html`<li class="more">and ${count(left)} more</li>` : undefined}</ul>`;
}
