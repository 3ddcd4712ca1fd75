import { describeEvent } from "./draw.js";
import { fold } from "./fold.js";
import type { Event, History } from "./history.js";
import { endOfWait, type Operation, type Run } from "./operations.js";
import type { Span } from "./spans.js";
import type { Verdict } from "./verdict.js";

const WIDTH = 960;
const LABEL = 150;
const RIGHT = 36;
const LANE = 30;
const BAR = 14;
const TOP = 34;
const MOST_LANES = 24;
const MOST_OPERATIONS = 1_000;
const TICKS = 6;

/** No CSS variables: not every viewer of SVG knows them. */
const STYLE = `
.holdfast{font:12px system-ui,sans-serif;fill:#1f2328}
.holdfast .axis{stroke:#d1d9e0}.holdfast .wait{stroke:#818b98;stroke-dasharray:2 3}
.holdfast .hold{fill:#80ccff}.holdfast .told{fill:#0969da}
.holdfast .pause{fill:#1f2328;opacity:.18}.holdfast .fault{fill:#818b98;opacity:.25}
.holdfast .wrong{fill:#d1242f;opacity:.25}.holdfast .dead{stroke:#d1242f;stroke-width:2;fill:none}
.holdfast .mark{fill:#d1242f}.holdfast .in{fill:#fff;font-size:9px;text-anchor:middle}
@media (prefers-color-scheme:dark){
.holdfast{fill:#e6edf3}.holdfast .axis{stroke:#30363d}
.holdfast .hold{fill:#2d5a8c}.holdfast .told{fill:#6cb6ff}.holdfast .pause{fill:#e6edf3}
.holdfast .wrong,.holdfast .mark{fill:#ff6b6b}.holdfast .dead{stroke:#ff6b6b}.holdfast .in{fill:#000}}
`.replaceAll("\n", "");

/**
 * Draws a lane for each client, with the times in which it believed that it held a name. With a
 * verdict: only the clients and the time around it, its evidence numbered, and the time of the
 * violation in red.
 */
export function drawBeliefs(history: History, verdict?: Verdict): string {
  const run = fold(history);
  const evidence = verdict?.evidence ?? [];
  const told = operationsOf(run, evidence);
  const wrong = verdict?.verdict === "violated" ? wrongTime(told, evidence) : undefined;
  const view = viewOf(run, evidence, wrong);
  const isSeen = ({ fromMs, toMs }: Span): boolean => toMs >= view.fromMs && fromMs <= view.toMs;
  const operations = [...run.operations.values()]
    .filter((op) => isSeen(lifeOf(op)))
    .filter(
      ({ asked }) => told.size === 0 || [...told].some((one) => one.asked.name === asked.name),
    );
  const clients = [
    ...new Set([...told, ...operations].map(({ asked }) => asked.client)),
    ...evidence.flatMap((event) => ("client" in event ? [event.client] : [])),
  ];
  const lanes = [...new Set(clients)].slice(0, MOST_LANES).sort();
  const shown = [...told, ...operations.filter((op) => !told.has(op))]
    .filter(({ asked }) => lanes.includes(asked.client))
    .slice(0, MOST_OPERATIONS);
  const left = new Set(clients).size - lanes.length;

  const height = TOP + LANE * lanes.length + (left > 0 ? 20 : 4);
  const x = (atMs: number): number => {
    const share = (atMs - view.fromMs) / (view.toMs - view.fromMs);
    return LABEL + Math.min(1, Math.max(0, share)) * (WIDTH - LABEL - RIGHT);
  };
  const y = (client: string): number => TOP + LANE * lanes.indexOf(client) + LANE / 2;
  const bar = (span: Span, middle: number, high: number, kind: string, title = ""): string => {
    const [from, to] = [x(span.fromMs), x(span.toMs)];
    return `<rect class="${kind}" x="${px(from)}" y="${px(middle - high / 2)}" width="${px(Math.max(1, to - from))}" height="${px(high)}" rx="2">${titled(title)}</rect>`;
  };
  const middle = TOP + (LANE * lanes.length) / 2;
  const tall = LANE * lanes.length;

  const parts: string[] = [];
  for (let i = 0; i <= TICKS; i++) {
    const atMs = view.fromMs + ((view.toMs - view.fromMs) * i) / TICKS;
    parts.push(
      `<line class="axis" x1="${px(x(atMs))}" x2="${px(x(atMs))}" y1="${TOP - 8}" y2="${TOP + tall}"/>`,
      `<text x="${px(x(atMs))}" y="${TOP - 14}" text-anchor="middle">${xml(run.at(atMs))}</text>`,
    );
  }
  for (const span of run.faults.touching(view.fromMs, view.toMs)) {
    parts.push(bar(span, middle, tall, "fault", "a fault was active"));
  }
  for (const client of lanes) {
    parts.push(`<text x="8" y="${px(y(client) + 4)}">${xml(shorten(client))}</text>`);
  }
  for (const op of shown) {
    const { asked, granted, killed } = op;
    const endMs = endOfWait(op)?.atMs ?? view.toMs;
    const at = y(asked.client);
    parts.push(
      `<line class="wait" x1="${px(x(asked.atMs))}" x2="${px(x(endMs))}" y1="${px(at)}" y2="${px(at)}"/>`,
    );
    for (const belief of op.beliefs.filter(isSeen)) {
      const title = `${asked.op}: ${asked.name}, token ${granted?.token}, ${run.at(belief.fromMs)} to ${run.at(belief.toMs)}`;
      parts.push(bar(belief, at, BAR, told.has(op) ? "told" : "hold", title));
    }
    if (killed !== undefined && isSeen({ fromMs: killed.atMs, toMs: killed.atMs })) {
      const [cx, d] = [x(killed.atMs), 5];
      parts.push(
        `<path class="dead" d="M${px(cx - d)} ${px(at - d)}l${2 * d} ${2 * d}m0 ${-2 * d}l${-2 * d} ${2 * d}">${titled("killed")}</path>`,
      );
    }
  }
  for (const client of lanes) {
    for (const span of run.pausesOf(client).touching(view.fromMs, view.toMs)) {
      parts.push(bar(span, y(client), LANE - 6, "pause", `${client} was paused`));
    }
  }
  if (wrong !== undefined) parts.push(bar(wrong, middle, tall, "wrong", verdict?.why));
  for (const [i, event] of evidence.entries()) {
    const client = clientOf(run, event);
    const at = client !== undefined && lanes.includes(client) ? y(client) - BAR / 2 : TOP - 4;
    parts.push(
      `<circle class="mark" cx="${px(x(event.atMs))}" cy="${px(at)}" r="7">${titled(`${run.at(event.atMs)} ${event.kind} ${describeEvent(event, run.at)}`)}</circle>`,
      `<text class="in" x="${px(x(event.atMs))}" y="${px(at + 3)}">${i + 1}</text>`,
    );
  }
  if (left > 0) parts.push(`<text x="8" y="${height - 6}">and ${left} more clients</text>`);
  const title = verdict === undefined ? "Holders over time" : `${verdict.rule}: ${verdict.why}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" class="holdfast" role="img" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}">${titled(title)}<style>${STYLE}</style>${parts.join("")}</svg>\n`;
}

/**
 * The time of the evidence, with a margin; without evidence, the whole run. Requests may be long
 * ago and do not widen the view: their marks are at its edge.
 */
export function viewOf(run: Run, evidence: History, wrong: Span | undefined): Span {
  const some = evidence.filter(({ kind }) => kind !== "asked");
  const events = [some, evidence, run.events].find((list) => list.length > 0) ?? [];
  const fromMs = Math.min(events[0]?.atMs ?? 0, wrong?.fromMs ?? Number.POSITIVE_INFINITY);
  const toMs = Math.max(events.at(-1)?.atMs ?? 0, wrong?.toMs ?? fromMs + 1);
  const marginMs = evidence.length > 0 ? (toMs - fromMs) * 0.15 : 0;
  return { fromMs: fromMs - marginMs, toMs: toMs + marginMs };
}

/**
 * The time in which several operations of the evidence believed that they held; otherwise the time
 * between the last two events.
 */
export function wrongTime(told: ReadonlySet<Operation>, evidence: History): Span | undefined {
  const last = evidence.at(-1);
  if (last === undefined) return undefined;
  const held = [...told]
    .flatMap(({ beliefs }) => beliefs)
    .filter(({ fromMs, toMs }) => fromMs <= last.atMs && toMs > last.atMs);
  if (held.length > 1) {
    return { fromMs: last.atMs, toMs: Math.min(...held.map(({ toMs }) => toMs)) };
  }
  return { fromMs: evidence.at(-2)?.atMs ?? last.atMs, toMs: last.atMs };
}

export function operationsOf(run: Run, events: History): ReadonlySet<Operation> {
  const operations = events.map((event) => run.operations.get("op" in event ? event.op : ""));
  return new Set(operations.filter((op) => op !== undefined));
}

export function clientOf(run: Run, event: Event): string | undefined {
  if ("client" in event) return event.client;
  return "op" in event ? run.operations.get(event.op)?.asked.client : undefined;
}

function lifeOf(op: Operation): Span {
  const toMs = op.beliefs.at(-1)?.toMs ?? endOfWait(op)?.atMs ?? Number.POSITIVE_INFINITY;
  return { fromMs: op.asked.atMs, toMs };
}

const px = (value: number): string => String(Math.round(value * 10) / 10);
const titled = (text = ""): string => (text === "" ? "" : `<title>${xml(text)}</title>`);
const shorten = (text: string): string => (text.length > 20 ? `${text.slice(0, 19)}…` : text);

const ENTITIES: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  '"': "&quot;",
};

/** Escapes markup, and replaces characters that XML does not allow. */
const xml = (text: string): string =>
  text
    .toWellFormed()
    .replaceAll(/[\p{Cc}\uFFFE\uFFFF]/gu, "\uFFFD")
    .replaceAll(/[&<>"]/g, (sign) => ENTITIES[sign]!);
