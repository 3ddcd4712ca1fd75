import { createHash } from "node:crypto";
import type { History } from "../check/history.js";
import type { Result } from "../runner/result.js";
import { html, Markup, scriptJson } from "./html.js";
import { modelOf } from "./model.js";
import { SCRIPT } from "./page/script.js";
import { pageData } from "./page-data.js";
import { checksSection } from "./sections/checks.js";
import { faultsSection } from "./sections/faults.js";
import { plotsSection } from "./sections/plots.js";
import { registersSection } from "./sections/registers.js";
import { storiesSection } from "./sections/stories.js";
import { timeLinesSection } from "./sections/time-lines.js";
import { verdictSection } from "./sections/verdict.js";
import { STYLE } from "./style.js";

/**
 * The report of a verification: one HTML page that needs no network and no other file. The same
 * input gives the same page. `history` is the history of all runs, on the time line of `result`.
 *
 * Texts of the history are untrusted: they are escaped, and the page's policy runs only its own script.
 *
 * @example
 * await writeFile("report.html", renderReport(result, history));
 */
export function renderReport(result: Result, history: History): string {
  const model = modelOf(result, history);
  const policy = [
    "default-src 'none'",
    `script-src ${hashOf(SCRIPT)}`,
    `style-src ${hashOf(STYLE)}`,
    "img-src data:",
    "base-uri 'none'",
    "form-action 'none'",
  ].join("; ");
  const page = html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>${result.target}: ${result.outcome} – holdfast verify</title>
<style>${new Markup(STYLE)}</style>
</head>
<body>
<main>
${verdictSection(model)}
${checksSection(model)}
${timeLinesSection(model)}
${storiesSection(model)}
${plotsSection(model)}
${registersSection(model)}
${faultsSection(model)}
</main>
<script type="application/json" id="data">${scriptJson(pageData(model))}</script>
<script>${new Markup(SCRIPT)}</script>
</body>
</html>
`;
  return page.text;
}

const hashOf = (text: string): string =>
  `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
