import type { RegisterCount } from "../../runner/result.js";
import { html, type Markup } from "../html.js";
import type { Model } from "../model.js";
import { count, counted } from "../words.js";

/** The effect of a fence on data that each holder reads, changes and writes. */
export function registersSection({
  result: { fence, fenced, unfenced },
}: Model): Markup | undefined {
  if (fenced.writes + fenced.refused + unfenced.writes === 0) return undefined;
  return html`<section id="registers">
<h2>Registers</h2>
<p class="note">Each holder reads a number, adds one and writes it back: once behind a fence, once without.</p>
<div class="scroll"><table class="registers">
<thead><tr><th scope="col">register</th><th scope="col" class="number">writes</th><th scope="col" class="number">lost updates</th><th scope="col" class="number">refused writes</th></tr></thead>
<tbody>${row("without a fence", unfenced, false)}${row(`behind a fence (${fence})`, fenced, true)}</tbody>
</table></div>
<p>${meaning(unfenced, fenced)}</p>
</section>
`;
}

function row(name: string, { writes, lost, refused }: RegisterCount, isFenced: boolean): Markup {
  return html`<tr><th scope="row">${name}</th><td class="number">${count(writes)}</td><td class="number ${lost > 0 ? "lost" : ""}">${count(lost)}</td><td class="number">${isFenced ? count(refused) : "–"}</td></tr>`;
}

function meaning(unfenced: RegisterCount, fenced: RegisterCount): string {
  if (fenced.lost > 0) {
    return `The fence let ${counted(fenced.lost, "update")} be overwritten: this must never happen.`;
  }
  const kept =
    fenced.refused > 0
      ? `the fence refused ${counted(fenced.refused, "late write")} and lost no update`
      : "the fence lost no update";
  return unfenced.lost > 0
    ? `A lease alone let ${counted(unfenced.lost, "update")} be overwritten by a holder whose lease had ended; ${kept}.`
    : `In this run no update was lost without a fence either; ${kept}. Only the fence promises it.`;
}
