/** The style sheet of the report. The canvas reads its colours from the variables. */
export const STYLE = `
:root {
  --sans: Inter, ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --mono: "JetBrains Mono", ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  --paper: #f7f7f5;
  --panel: #ffffff;
  --ink: #1a1d21;
  --muted: #626973;
  --line: #e3e4e2;
  --good: #17785a;
  --bad: #c6302b;
  --fault: #e0a12b;
  --fault-ink: #7a5200;
  --on-bar: #ffffff;
  --bar-0: #2f6db5;
  --bar-1: #1f8a7d;
  --bar-2: #8a5bb0;
  --bar-3: #5b7d22;
  --bar-4: #b8527f;
  --bar-5: #4d5b8f;
  --bar-6: #8a6440;
  --bar-7: #2a8fb3;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0e1013;
    --panel: #15181c;
    --ink: #e7e9ec;
    --muted: #949ca6;
    --line: #282d33;
    --good: #4cc79a;
    --bad: #ff6f66;
    --fault: #c78f2a;
    --fault-ink: #f0c069;
    --on-bar: #0c0e10;
    --bar-0: #6ba6ea;
    --bar-1: #4bbfae;
    --bar-2: #b892dd;
    --bar-3: #9cbd5b;
    --bar-4: #e38cb4;
    --bar-5: #8f9ddb;
    --bar-6: #c79f77;
    --bar-7: #62c3e2;
  }
}
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); font: 16px/1.5 var(--sans); -webkit-text-size-adjust: 100%; scroll-padding-top: 16px; }
body { margin: 0; overflow-wrap: anywhere; }
main { max-width: 1180px; margin: 0 auto; padding: 48px 32px 96px; }
h1, h2, h3, p, dl, dd, figure, ul { margin: 0; padding: 0; }
h2 { font-size: 22px; line-height: 1.25; font-weight: 650; letter-spacing: -0.012em; margin-bottom: 6px; }
h3 { font-size: 15px; font-weight: 600; line-height: 1.4; }
section { margin-top: 56px; }
a { color: inherit; text-decoration-color: var(--muted); text-underline-offset: 3px; white-space: nowrap; }
a:hover { text-decoration-color: currentColor; }
button, .switch span { font: 500 13px/1 var(--sans); color: var(--ink); background: var(--panel); border: 1px solid var(--line); border-radius: 7px; padding: 8px 12px; min-width: 34px; cursor: pointer; }
button:hover { border-color: var(--muted); }
:focus-visible { outline: 2px solid var(--bar-0); outline-offset: 2px; }
code, .command { font-family: var(--mono); }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.note, figcaption, .small { color: var(--muted); font-size: 14px; }
.note { max-width: 76ch; margin-bottom: 14px; }

.eyebrow { font-size: 13px; font-weight: 600; letter-spacing: 0.02em; color: var(--muted); }
.eyebrow span { color: var(--ink); margin-left: 6px; }
.eyebrow span::before { content: "/"; color: var(--line); margin-right: 8px; }
h1 { display: flex; align-items: flex-start; gap: 0.32em; font-size: clamp(32px, 5.2vw, 60px); line-height: 1.08; font-weight: 700; letter-spacing: -0.03em; margin: 18px 0 14px; }
h1 svg { width: 0.86em; height: 0.86em; flex: none; margin-top: 0.12em; }
h1 circle { fill: var(--tone); }
h1 path { fill: none; stroke: var(--paper); stroke-width: 3.2; stroke-linecap: round; stroke-linejoin: round; }
.verdict { --tone: var(--muted); }
.verdict.held { --tone: var(--good); }
.verdict.violated { --tone: var(--bad); }
.lead { font-size: clamp(17px, 1.8vw, 21px); line-height: 1.45; color: var(--muted); max-width: 58ch; }
.facts { display: flex; flex-wrap: wrap; gap: 18px 44px; margin: 34px 0 28px; }
.facts dt { font-size: 13px; color: var(--muted); }
.facts dd { font-size: 26px; line-height: 1.2; font-weight: 600; letter-spacing: -0.02em; font-variant-numeric: tabular-nums; }
.command { display: flex; align-items: center; gap: 12px; background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 8px 8px 8px 16px; font-size: 14px; }
.command code { flex: 1; min-width: 0; padding: 3px 0; }
.command code::before { content: "$ "; color: var(--muted); }
.small { margin-top: 12px; font-size: 13px; }
.version::before { content: "·"; margin-right: 6px; margin-left: 2px; }

table { border-collapse: collapse; width: 100%; font-size: 15px; }
.scroll { overflow-x: auto; }
th { text-align: left; font-weight: 500; vertical-align: baseline; }
td { vertical-align: baseline; }
thead th { white-space: nowrap; font-size: 13px; font-weight: 500; color: var(--muted); border-bottom: 1px solid var(--line); }
th, td { padding: 9px 18px 9px 0; }
th:last-child, td:last-child { padding-right: 0; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.checks tbody th { font-weight: 650; font-variant-numeric: tabular-nums; width: 3.2em; }
.checks .verdict { white-space: nowrap; color: var(--muted); }
.checks .verdict span::before { content: ""; display: inline-block; width: 8px; height: 8px; border-radius: 50%; background: currentColor; margin-right: 9px; vertical-align: 1px; }
.checks .held .verdict { color: var(--good); }
.checks .violated .verdict { color: var(--bad); font-weight: 700; }
.checks .expected .verdict { color: var(--fault-ink); }
.checks .unknown .verdict span::before { background: none; border: 1.5px solid currentColor; }
.checks .unknown .promise { color: var(--muted); }
.why { font-size: 14px; color: var(--muted); max-width: 84ch; }
.violated .why { color: var(--ink); }
.why a { color: var(--ink); }

.toolbar { display: flex; flex-wrap: wrap; align-items: center; gap: 10px 14px; margin: 4px 0 10px; }
.switch { display: flex; border: 0; margin: 0; padding: 0; }
.switch input { position: absolute; opacity: 0; }
.switch span { display: block; color: var(--muted); }
.switch label:first-of-type span { border-radius: 7px 0 0 7px; }
.switch label:last-of-type span { border-radius: 0 7px 7px 0; border-left: 0; }
.switch input:checked + span { background: var(--ink); border-color: var(--ink); color: var(--paper); }
.switch input:focus-visible + span { outline: 2px solid var(--bar-0); outline-offset: 2px; }
.buttons { display: flex; flex-wrap: wrap; gap: 6px; }
.stories button { font-weight: 650; color: var(--bad); }
.stories button.expected { color: var(--fault-ink); }
.stories button[aria-pressed=true] { border-color: currentColor; }
.range { margin-left: auto; font-size: 13px; color: var(--muted); font-variant-numeric: tabular-nums; }
[data-by=worker] .when-name, [data-by=name] .when-worker { display: none; }
.stage { position: relative; background: var(--panel); border: 1px solid var(--line); border-radius: 10px 10px 0 0; padding: 0; cursor: grab; touch-action: pan-y; user-select: none; -webkit-user-select: none; }
.stage:active { cursor: grabbing; }
.stage.pointing { cursor: default; }
.stage canvas { display: block; width: 100%; border-radius: inherit; }
.minimap { display: block; width: 100%; height: 52px; background: var(--panel); border: 1px solid var(--line); border-top: 0; border-radius: 0 0 10px 10px; cursor: ew-resize; touch-action: pan-y; }
.tip { position: absolute; z-index: 2; max-width: min(330px, 100%); display: flex; flex-direction: column; background: var(--ink); color: var(--paper); border-radius: 8px; padding: 9px 12px; font-size: 13px; line-height: 1.45; pointer-events: none; font-variant-numeric: tabular-nums; }
.tip[hidden] { display: none; }
.tip strong { font-weight: 650; }
.tip span { opacity: 0.82; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 20px; margin: 14px 0 8px; list-style: none; font-size: 13px; color: var(--muted); }
.legend li { display: flex; align-items: center; gap: 7px; }
.legend + .legend { margin-top: 4px; }
.colours li::before { content: ""; width: 12px; height: 12px; border-radius: 3px; background: var(--colour); }
.colours .more::before { display: none; }
${Array.from({ length: 8 }, (_, i) => `.colour-${i} { --colour: var(--bar-${i}); }`).join("\n")}
.legend svg { width: 24px; height: 18px; }
.legend .bar { fill: var(--bar-0); }
.legend .light { opacity: 0.45; }
.legend .fault { fill: var(--fault); opacity: 0.25; }
.legend .edge { fill: var(--fault); }
.legend .line { fill: none; stroke: var(--ink); stroke-width: 2; stroke-linecap: round; }
.legend .thin { stroke-width: 1.4; }
.legend .ink { fill: var(--ink); }
.legend .bad { fill: var(--bad); }
.legend text { font: 650 9px var(--sans); fill: var(--paper); text-anchor: middle; }
kbd { font: 500 12px var(--sans); border: 1px solid var(--line); border-radius: 4px; padding: 0 5px; background: var(--panel); }
.keys { font-size: 13px; }

.story { margin-top: 18px; padding: 20px 24px 12px; background: var(--panel); border: 1px solid var(--line); border-radius: 12px; --tone: var(--bad); }
.story.expected { --tone: var(--fault-ink); }
.story h3 { font-size: 17px; }
.story > p { color: var(--muted); font-size: 15px; margin: 4px 0 10px; max-width: 86ch; }
.story > p a { color: var(--ink); }
.tag { color: var(--tone); font-weight: 700; margin-right: 4px; }
.story td { font-size: 14px; padding-top: 7px; padding-bottom: 7px; }
.story .mark { width: 2.4em; }
.story td:last-child { width: 99%; }
.mark span { display: inline-grid; place-items: center; min-width: 20px; height: 20px; border-radius: 10px; padding: 0 4px; background: var(--tone); color: var(--panel); font-size: 12px; line-height: 1; font-weight: 650; }
.context td { color: var(--muted); }
.context .who { font-weight: 500; }
.later { color: var(--muted); }
.who { font-weight: 600; white-space: nowrap; }

.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 40px 56px; margin-top: 16px; }
.plot { display: block; width: 100%; max-width: 540px; height: auto; margin: 8px 0 4px; font: 10.5px var(--sans); fill: var(--ink); font-variant-numeric: tabular-nums; overflow: visible; }
figcaption { max-width: 62ch; }
.plot .tick { fill: var(--muted); font-size: 10px; }
.plot .name { font-weight: 600; }
.plot .end { text-anchor: end; }
.plot .middle { text-anchor: middle; }
.plot .axis { stroke: var(--muted); stroke-width: 0.8; }
.plot .grid { stroke: var(--line); stroke-width: 0.8; }
.plot .fault { fill: var(--fault); opacity: 0.1; }
.plot .fault.store { opacity: 0.3; }
.plot .even { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 3; }
.granted { --hue: var(--bar-0); }
.timeout { --hue: var(--bar-4); }
.other { --hue: var(--muted); }
.plot rect.granted, .plot rect.timeout, .plot rect.other { fill: var(--hue); }
.plot .dots { fill: none; stroke: var(--hue); stroke-width: 1.8; stroke-linecap: round; opacity: 0.6; }
.key { font-size: 13px; color: var(--muted); margin-right: 16px; }
.key::before { content: ""; display: inline-block; width: 8px; height: 8px; border-radius: 50%; background: var(--hue); margin-right: 7px; }

.registers, .faults { max-width: 760px; }
.registers .lost { color: var(--bad); font-weight: 650; }
#registers p:last-child { margin-top: 14px; max-width: 76ch; }

@media (max-width: 720px) {
  main { padding: 28px 16px 64px; }
  section { margin-top: 44px; }
  .facts { gap: 14px 28px; margin: 24px 0; }
  .facts dd { font-size: 22px; }
  .command { align-items: flex-start; font-size: 13px; }
  .checks, .checks tbody { display: block; }
  .checks thead { display: none; }
  .checks tr { display: grid; grid-template-columns: 2.6em 1fr auto; padding: 10px 0; }
  .checks tr + tr { border-top: 1px solid var(--line); }
  .checks tbody tr + tr > * { border: 0; }
  .checks th, .checks td { padding: 0; }
  .checks .promise { grid-column: 2 / -1; grid-row: 2; }
  .checks .verdict { grid-column: 2; grid-row: 1; white-space: normal; }
  .checks .number { grid-column: 3; grid-row: 1; color: var(--muted); font-size: 14px; }
  .range { margin-left: 0; width: 100%; }
  .story { padding: 16px 16px 6px; }
  .story .later, .story thead th:nth-child(3) { display: none; }
  .story th, .story td { padding-right: 10px; }
}
@media print {
  .toolbar, .keys, #copy { display: none; }
}
`;
