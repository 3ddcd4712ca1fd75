import { ruleSteps, type Step, storeSteps } from "./conditions.js";
import { wrap } from "./text.js";

const LINE = 18;
const LEFT = { x: 20, width: 330, letters: 46 };
const RIGHT = { x: 410, width: 330, letters: 46 };
const GAP = 22;
const HEADING = 34;

const STYLE = `
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .heading { font-weight: 600; font-size: 15px }
  .small { font-size: 11px; fill: #59636e }
  .if { fill: #f6f8fa; stroke: #8c959f }
  .then { fill: #ddf4ff; stroke: #0969da }
  path { stroke: #8c959f; fill: none; marker-end: url(#arrow) }
  #arrow path { fill: #8c959f; stroke: none }
  .page { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9198a1 }
    .if { fill: #161b22; stroke: #656c76 }
    .then { fill: #10233a; stroke: #4493f8 }
    .page { fill: #0d1117 }
  }`;

/** The whole decision as SVG, for light and dark pages. */
export function decisionPicture(): string {
  const rules = ladder("Lock or no lock: the first line that is true", ruleSteps(), 10);
  const stores = ladder("Which store, if there is a lease", storeSteps(), rules.bottom + 20);
  const [width, height] = [RIGHT.x + RIGHT.width + 20, stores.bottom + 10];
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" role="img" aria-label="The decision of holdfast advise">
<style>${STYLE}
</style>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>
<rect class="page" width="${width}" height="${height}" rx="6"/>
${rules.svg}
${stores.svg}
</svg>
`;
}

/** One box for each step below the other; the result of a step stands to its right. */
function ladder(
  title: string,
  steps: readonly Step[],
  top: number,
): { svg: string; bottom: number } {
  const parts = [`<text class="heading" x="${LEFT.x}" y="${top + 20}">${escaped(title)}</text>`];
  let y = top + HEADING;
  for (const [at, { conditions, result }] of steps.entries()) {
    const question = conditions.length === 0 ? ["otherwise"] : conditions;
    const left = question.flatMap((one) => wrap(one, LEFT.letters));
    const right = wrap(result, RIGHT.letters);
    const height = Math.max(left.length, right.length) * LINE + 14;
    const middle = y + height / 2;
    parts.push(box("if", LEFT, y, height, left), box("then", RIGHT, y, height, right));
    parts.push(arrow(LEFT.x + LEFT.width, middle, RIGHT.x, middle));
    parts.push(label(LEFT.x + LEFT.width + 20, middle - 5, "yes"));
    if (at < steps.length - 1) {
      const x = LEFT.x + LEFT.width / 2;
      parts.push(arrow(x, y + height, x, y + height + GAP), label(x + 8, y + height + 15, "no"));
    }
    y += height + GAP;
  }
  return { svg: parts.join("\n"), bottom: y - GAP };
}

function box(
  kind: "if" | "then",
  { x, width }: typeof LEFT,
  y: number,
  height: number,
  lines: readonly string[],
): string {
  const first = y + (height - lines.length * LINE) / 2 + LINE - 5;
  const texts = lines.map(
    (line, at) => `<text x="${x + 12}" y="${first + at * LINE}">${escaped(line)}</text>`,
  );
  return `<rect class="${kind}" x="${x}" y="${y}" width="${width}" height="${height}" rx="5"/>${texts.join("")}`;
}

const arrow = (x1: number, y1: number, x2: number, y2: number): string =>
  `<path d="M${x1} ${y1}L${x2} ${y2}"/>`;

const label = (x: number, y: number, text: string): string =>
  `<text class="small" x="${x}" y="${y}">${text}</text>`;

const escaped = (text: string): string => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
