import { createHash } from "node:crypto";
import { describe, expect, test } from "vitest";
import { fold } from "../../src/verify/check/fold.js";
import type { Event, History } from "../../src/verify/check/history.js";
import type { RuleId } from "../../src/verify/check/verdict.js";
import {
  handoversOf,
  jain,
  quantile,
  sharesOf,
  waitsOf,
} from "../../src/verify/report/measures.js";
import { modelOf } from "../../src/verify/report/model.js";
import type { PageData } from "../../src/verify/report/page/data.js";
import { renderReport } from "../../src/verify/report/render.js";
import { storyLines, storyText } from "../../src/verify/report/story.js";
import { count, describeEvent, duration, listed } from "../../src/verify/report/words.js";
import type { CheckResult } from "../../src/verify/runner/result.js";
import {
  asExpected,
  busyVerification,
  mutantVerification,
  verificationOf,
} from "../support/verification.js";

const HOSTILE = [
  "</script><script>alert(1)</script>",
  '"><img src=x onerror=alert(2)>',
  "'><svg onload=alert(3)>",
  "<!--",
  "line\u2028and\u2029paragraph",
  "\u202Ereversed",
  "lone \uD800 surrogate",
  "null \0 and bell \x07",
  "&lt;b&gt;",
  "__proto__",
];

const dataOf = (page: string): PageData =>
  JSON.parse(/<script type="application\/json" id="data">(.*?)<\/script>/s.exec(page)![1]!);

const asked = (atMs: number, op: string, client: string, name = "name"): Event => ({
  ...{ kind: "asked", atMs, op, client, name },
  ...{ permits: 2 ** 31 - 1, limit: 2 ** 31 - 1, ttlMs: 1_000, waitMs: 5_000 },
});
const granted = (atMs: number, op: string, token: bigint): Event => ({
  ...{ kind: "granted", atMs, op, token, floor: token, untilMs: atMs + 900 },
});
const releasing = (atMs: number, op: string): Event => ({ kind: "releasing", atMs, op });

describe("the page of a report", () => {
  const small = busyVerification({ forMs: 8_000 });

  test("is the same for the same input", () => {
    const again = busyVerification({ forMs: 8_000 });
    expect(renderReport(again.result, again.history)).toBe(
      renderReport(small.result, small.history),
    );
  });

  test("has every section, and the command that repeats the run", () => {
    const page = renderReport(small.result, small.history);
    for (const id of ["checks", "time-lines", "plots", "registers", "faults"]) {
      expect(page).toContain(`<section id="${id}"`);
    }
    expect(page).toMatch(/Every tested promise held<\/h1>\n<p class="lead">[^<]* Not seen: [SL]\d/);
    expect(page).toContain("nothing seen");
    expect(page).toContain("behind a fence (sqlite)");
    expect(page).not.toContain('<section id="stories"');
    expect(page).toContain(small.result.command);
    expect(page).toContain("17 November 2026, 04:49 UTC");
  });

  test("allows its own script and style by hash, and nothing remote", () => {
    const page = renderReport(small.result, small.history);
    const policy = /Content-Security-Policy" content="([^"]*)"/.exec(page)![1]!;
    const hashOf = (tag: string): string => {
      const text = new RegExp(`<${tag}>(.*?)</${tag}>`, "s").exec(page)![1]!;
      return `&#39;sha256-${createHash("sha256").update(text).digest("base64")}&#39;`;
    };
    expect(policy).toBe(
      `default-src &#39;none&#39;; script-src ${hashOf("script")}; style-src ${hashOf("style")}; img-src data:; base-uri &#39;none&#39;; form-action &#39;none&#39;`,
    );
    expect(page).not.toMatch(/https?:|\bstyle="|\son\w+="|@import|url\(/);
  });

  test("has a script without traces of a bundler or of a test runner", () => {
    const page = renderReport(small.result, small.history);
    const script = /<script>(.*?)<\/script>/s.exec(page)![1]!;
    expect(() => new Function(script)).not.toThrow();
    expect(script).not.toMatch(/__vi|__vite|__name|_classPrivate|import\(|<\/|<!--/);
  });

  test("is small for 8 workers and a minute", () => {
    const { result, history } = busyVerification({ seed: 7 });
    expect(result.operations).toBeGreaterThan(4_000);
    expect(renderReport(result, history).length).toBeLessThan(3_000_000);
  });

  test("says that every promise held only if all that the store gives were tested", () => {
    const { result, history } = small;
    const unseen = result.checks.filter(({ verdict }) => verdict === "unknown");
    const notOffered = unseen.map(({ id }) => id as RuleId);
    const page = renderReport({ ...result, fence: "etcd", notOffered }, history);
    expect(page).toContain("Every promise held</h1>");
    expect(page).not.toMatch(/Not seen:|nothing seen/);
    expect(page.match(/<span>not offered</g)).toHaveLength(unseen.length);
    expect(page).toContain("behind a fence (etcd)");
  });

  test("tells faults apart that did not strike", () => {
    const { result, history } = busyVerification({ forMs: 5_000 });
    const [run] = result.runs;
    const [first, ...rest] = run!.faults;
    const faults = [{ ...first!, failed: "no such server" }, ...rest];
    const page = renderReport(
      { ...result, faults: rest.length, failedFaults: 1, runs: [{ ...run!, faults }] },
      history,
    );
    expect(page).toContain(`${rest.length} faults (1 more did not strike)`);
    expect(dataOf(page).faults.filter(([, , , what]) => /did not strike/.test(what))).toHaveLength(
      1,
    );
    const row = new RegExp(`<th scope="row">${first!.kind}</th>.*<td class="number">1</td>`);
    expect(page).toMatch(row);
  });

  test("can be made from no runs", () => {
    const { result } = verificationOf([], [], { checks: [], outcome: "unknown", runs: [] });
    const page = renderReport(result, []);
    expect(page).toContain("No verdict");
    expect(page.slice(0, page.indexOf("<script>"))).not.toMatch(/NaN|Infinity|undefined/);
  });
});

describe("text that others have written, in a report", () => {
  const { result, history } = busyVerification({ forMs: 5_000, names: HOSTILE });
  const hostile = HOSTILE.join(" ");
  const page = renderReport(
    {
      ...result,
      ...{ target: hostile, about: hostile, command: hostile, versions: { [hostile]: hostile } },
      runs: result.runs.map((run) => ({
        ...run,
        faults: run.faults.map((fault) => ({ ...fault, kind: hostile, name: hostile })),
      })),
      checks: result.checks.map((check) => ({
        ...check,
        ...{ verdict: "violated" as const, why: hostile, promise: hostile },
        evidence: history.slice(0, 40),
      })),
    },
    history,
  );

  test("is shown as text everywhere", () => {
    const tags = new Set([...page.matchAll(/<\/?([a-z!][\w-]*)/gi)].map(([, tag]) => tag));
    for (const tag of ["img", "b", "!--"]) expect(tags).not.toContain(tag);
    expect(page.match(/<script/g)).toHaveLength(2);
    expect(page).not.toMatch(/<[^>]*\son(error|load)=/);
    expect(page).not.toMatch(/(?![\n\t])[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\u202E]/u);
    expect(page).toContain("&amp;lt;b&amp;gt;");
  });

  test("is in the data as it was, but for characters that hide or reorder text", () => {
    const { names } = dataOf(page);
    expect(names).toHaveLength(HOSTILE.length);
    expect(names).toContain(HOSTILE[0]);
    expect(names).toContain("\\u{202e}reversed");
    expect(names).toContain("line\\u{2028}and\\u{2029}paragraph");
  });
});

describe("a broken promise in a report", () => {
  const forgetful = busyVerification({ seed: 7, forgetsAtMs: 31_500 });

  test("the terminal tells the first broken promise in ten lines, and names the others", () => {
    const { result, history } = forgetful;
    const first = result.checks.find(({ verdict }) => verdict === "violated")!;
    const others = ["L4", "P5"].map(
      (id): CheckResult => ({ ...first, id: id as RuleId, why: "no" }),
    );
    const held = result.checks.filter(({ verdict }) => verdict !== "violated");
    const text = storyText(modelOf(result, history), [...held, first, ...others]);
    expect(text[0]).toBe(`${first.id}: ${first.why}`);
    expect(text.at(-1)).toBe("Also broken: L4 and P5.");
    const lines = text.slice(1, -1);
    expect(lines.length).toBeGreaterThan(first.evidence.length);
    expect(lines.length).toBeLessThanOrEqual(10);
    for (const line of lines) expect(line).toMatch(/^ +\+[\d.]+ m?s {2}(w\d|store|\S+) \S+/);
  });

  test("is told as a story, and is on the time line", async () => {
    const { result, history } = await mutantVerification("deadline counted from the reply");
    const page = renderReport(result, history);
    expect(page).toContain("A promise was broken");
    expect(page).toContain('<a href="#time-lines" data-jump="S1">');
    const check = result.checks.find(({ verdict }) => verdict === "violated")!;
    const [story] = dataOf(page).stories;
    expect(story).toMatchObject({ check: check.id, violated: true });
    expect(story!.marks).toHaveLength(check.evidence.length);
    expect(story!.fromMs).toBeLessThan(story!.marks.at(-1)![0]);
    expect(story!.toMs).toBeGreaterThan(story!.marks.at(-1)![0]);
    const article = /<article class="story violated".*?<\/article>/s.exec(page)![0];
    expect(article.match(/<tr class="evidence">/g)).toHaveLength(check.evidence.length);
  });

  test("is told with what happened to the same workers and the store meanwhile", () => {
    const { result, history } = forgetful;
    const check = result.checks.find(({ id }) => id === "S1")!;
    const copied = { ...check, evidence: structuredClone(check.evidence) };
    const model = modelOf({ ...result, checks: [copied] }, history);
    const lines = storyLines(model, copied);
    const ops = new Set(check.evidence.flatMap((event) => ("op" in event ? [event.op] : [])));
    expect(lines.map(({ number }) => number).filter((number) => number !== undefined)).toEqual(
      check.evidence.map((_, i) => i + 1),
    );
    expect(lines.length).toBeLessThanOrEqual(10);
    const context = lines.filter(({ number }) => number === undefined);
    expect(context.map(({ event }) => event.kind)).toContain("renewed");
    for (const { event } of context) if ("op" in event) expect(ops).toContain(event.op);
    expect(lines.map(({ event }) => event.atMs)).toEqual(
      lines.map(({ event }) => event.atMs).sort((a, b) => a - b),
    );
  });

  test("that is not promised there is not called a violation", () => {
    const { result, history } = asExpected(forgetful);
    const page = renderReport(result, history);
    expect(page).toMatch(/Every (tested )?promise held/);
    expect(page).toContain("broken where not promised, 3×");
    expect(page).toContain("broken where the store does not promise it.");
    expect(page).not.toContain("VIOLATED");
    expect(dataOf(page).stories[0]).toMatchObject({ violated: false });
  });
});

test("has a story that names the faults in force, also those that began before it", () => {
  const fault = (name: string, fromMs: number, untilMs: number) => ({
    ...{ kind: "paused", hits: "server" as const, name, fromMs, untilMs },
  });
  const faults = [
    fault("long ago", 0, 10),
    fault("in force", 2_000, 6_100),
    fault("later", 6_200, 6_300),
  ];
  const evidence = [asked(6_000, "a", "w1"), granted(6_050, "a", 1n)];
  const history: History = [
    ...faults.flatMap(({ name, fromMs, untilMs }): Event[] => [
      { kind: "injected", atMs: fromMs, fault: name },
      { kind: "healed", atMs: untilMs, fault: name },
    ]),
    ...evidence,
  ];
  const { result } = verificationOf(history, faults, { checks: [] });
  const check = { id: "S1", promise: "", verdict: "violated", checked: 1, expected: 0, why: "" };
  const lines = storyLines(modelOf(result, history), { ...check, evidence } as CheckResult);
  expect(lines.map(({ event }) => ("fault" in event ? event.fault : event.kind))).toEqual([
    ...["in force", "asked", "granted", "in force"],
  ]);
});

describe("the data of the time lines", () => {
  test("keeps runs apart that use the same workers and ops", () => {
    const one: History = [asked(0, "op", "w1"), granted(5, "op", 1n), releasing(20, "op")];
    const two: History = [
      ...one.map((event) => ({ ...event, atMs: event.atMs + 100 })),
      asked(140, "unended", "w1"),
    ];
    const none = { writes: 0, lost: 0, refused: 0 };
    const registers = { fenced: none, unfenced: none };
    const run = { seed: 3, clients: ["w1"], faults: [], checks: [], registers };
    const { result } = verificationOf([...one, ...two], [], {
      checks: [],
      runs: [
        { ...run, fromMs: 0, untilMs: 50 },
        { ...run, seed: 4, fromMs: 100, untilMs: 150 },
      ],
    });
    const data = dataOf(renderReport(result, [...one, asked(30, "unended", "w1"), ...two]));
    expect(data.operations.map((row) => row.slice(9))).toEqual([[5, 20], [], [105, 120], []]);
    expect(data.operations.map(([, , , , waitedUntilMs]) => waitedUntilMs)).toEqual([
      ...[5, 50, 105, 150],
    ]);
    expect(data.runs).toEqual([
      [0, 3],
      [100, 4],
    ]);
  });

  test("has kills, pauses, faults, losses and refusals", () => {
    const { result, history } = busyVerification({ seed: 7 });
    const data = dataOf(renderReport(result, history));
    const kinds = (kind: Event["kind"]): number =>
      history.filter((event) => event.kind === kind).length;
    expect(data.kills).toHaveLength(kinds("killed"));
    expect(data.pauses).toHaveLength(kinds("paused"));
    expect(data.losses).toHaveLength(kinds("lost"));
    expect(data.faults).toHaveLength(result.faults);
    expect(data.refusals.length).toBeGreaterThan(0);
    const ofStore = result.runs[0]!.faults.filter(({ client }) => client === undefined);
    expect(data.faults.filter(([worker]) => worker === -1)).toHaveLength(ofStore.length);
  });
});

describe("the measurements of a report", () => {
  const history: History = [
    asked(0, "a", "w1"),
    granted(2, "a", 1n),
    asked(10, "b", "w2"),
    releasing(50, "a"),
    granted(53, "b", 2n),
    releasing(60, "b"),
    // Nobody waited when b was released: no handover.
    asked(70, "c", "w1"),
    granted(71, "c", 3n),
    asked(72, "d", "w3"),
    { kind: "not-granted", atMs: 172, op: "d", outcome: "timeout" },
  ];
  const { result } = verificationOf(history, [], { checks: [] });
  const model = modelOf(result, history);

  test("count waits that end with a grant, and those that end without one", () => {
    expect(waitsOf(model).map(({ waitedMs, outcome }) => [waitedMs, outcome])).toEqual([
      [2, "granted"],
      [43, "granted"],
      [1, "granted"],
      [100, "timeout"],
    ]);
  });

  test("count a handover from a release to the grant of a waiter", () => {
    expect(handoversOf(model)).toEqual([3]);
  });

  test("count a worker without a grant for fairness", () => {
    expect(sharesOf(model)).toEqual([
      { worker: "w1", grants: 2 },
      { worker: "w2", grants: 1 },
      { worker: "w3", grants: 0 },
    ]);
    expect(jain([2, 1, 0])).toBeCloseTo(0.6);
    expect(jain([5, 5, 5])).toBe(1);
    expect(jain([0, 0])).toBeUndefined();
  });

  test("have quantiles that are measured values", () => {
    expect(quantile([1, 2, 3, 4], 0.5)).toBe(2);
    expect(quantile([1, 2, 3, 4], 0.99)).toBe(4);
    expect(quantile([], 0.5)).toBeUndefined();
  });
});

describe("the words of a report", () => {
  test("give durations in a unit that suits them", () => {
    const shown = [0, 0.123, 4.26, 12.3, 999.4, 1_500, 12_340, 60_000, 64_200].map(duration);
    expect(shown.join(", ")).toBe(
      "0 ms, 0.12 ms, 4.3 ms, 12 ms, 999 ms, 1.5 s, 12.3 s, 1 min, 1 min 4 s",
    );
    expect([7, 1_234, 1_234_567].map(count)).toEqual(["7", "1,234", "1,234,567"]);
    expect(listed(["S1", "S4", "L2"])).toBe("S1, S4 and L2");
  });

  test("have a sentence for every event of a busy run", () => {
    const { history } = busyVerification({ seed: 7 });
    const run = fold(history);
    const kinds = new Map(history.map((event) => [event.kind, event]));
    for (const event of kinds.values()) {
      const { subject, predicate } = describeEvent(event, run, run.at);
      expect(`${subject} ${predicate}`).toMatch(/^\S.* \S/);
      expect(predicate).not.toMatch(/undefined|NaN|a name”/);
    }
  });
});
