import type { CheckResult, Result } from "../../runner/result.js";
import { html, type Markup } from "../html.js";
import type { Model } from "../model.js";
import { count, isOffered, sentence } from "../words.js";

/** One row for each check. A row with evidence leads to its place on the time lines. */
export function checksSection({ result, broken }: Model): Markup {
  return html`<section id="checks">
<h2>Checks</h2>
<table class="checks">
<thead><tr><th scope="col">check</th><th scope="col">promise</th><th scope="col">verdict</th><th scope="col" class="number">compared</th></tr></thead>
<tbody>${result.checks.map((check) => row(check, broken.includes(check), wordOf(check, result)))}</tbody>
</table>
</section>
`;
}

function row(check: CheckResult, isBroken: boolean, word: string): Markup {
  const { id, promise, verdict, checked, why } = check;
  const jump = isBroken
    ? html` <a href="#time-lines" data-jump="${id}">Show on the time line</a>`
    : undefined;
  // "held, compared 12 times" would repeat the two columns beside it.
  const isNews = verdict !== "held" || !why.startsWith("held");
  return html`<tr class="${verdict}" id="check-${id}">
<th scope="row">${id}</th>
<td class="promise">${promise}${isNews || isBroken ? html`<p class="why">${sentence(why)}${jump}</p>` : undefined}</td>
<td class="verdict"><span>${word}</span></td>
<td class="number">${count(checked)}</td>
</tr>
`;
}

function wordOf(check: CheckResult, result: Result): string {
  const { verdict, expected } = check;
  switch (verdict) {
    case "held":
      return "held";
    case "violated":
      return "VIOLATED";
    case "expected":
      return `broken where not promised, ${count(expected)}×`;
    case "unknown":
      return isOffered(check, result) ? "nothing seen" : "not offered";
  }
}
