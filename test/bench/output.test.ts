import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { runs } from "../support/chance.js";
import { load } from "./load.js";

type Value = number | { median: number; low: number; high: number };

const { format } = await load<{ format(value: Value | undefined, unit: string): string }>(
  "lib/format.mjs",
);
const { table, figureTable } = await load<{
  table(head: readonly string[], rows: readonly (readonly unknown[])[]): string;
  figureTable(
    columns: Record<string, [string, string]>,
    figures: Record<string, Record<string, Value | undefined>>,
  ): string;
}>("lib/tables.mjs");
const { barPlot, distributionPlot } = await load<{
  barPlot(options: {
    title: string;
    axis: string;
    unit: string;
    bars: readonly { label: string; value: Value | undefined }[];
    mark?: number;
  }): string;
  distributionPlot(options: {
    title: string;
    axis: string;
    unit: string;
    series: readonly { label: string; values: readonly number[] }[];
  }): string;
}>("lib/plots.mjs");
const { judge } = await load<{
  judge(
    goal: { figure: string; goal: string; who?: string },
    result: {
      figures: Record<string, Record<string, Value>>;
      columns: Record<string, [string, string]>;
      peers: readonly string[];
    },
  ): { what: string; goal: string; measured: string; verdict: string };
}>("lib/goals.mjs");

describe("tables of results", () => {
  test("are Markdown, with characters escaped that would break them", () => {
    expect(table(["", "a"], [["x | y", 1]])).toBe("|  | a |\n| --- | ---: |\n| x \\| y | 1 |");
    expect(table(["", "a"], [["two\nlines", 1]])).toContain("| two lines | 1 |");
  });

  test("show figures in their units, and no column that nobody has", () => {
    const columns: Record<string, [string, string]> = {
      p50Ms: ["p50", "ms"],
      commands: ["commands", "count"],
      none: ["none", "×"],
    };
    const figures = { A: { p50Ms: 0.25, commands: 2.04 }, B: { p50Ms: 1.5 } };
    expect(figureTable(columns, figures).split("\n")).toEqual([
      "|  | p50 | commands |",
      "| --- | ---: | ---: |",
      "| A | 250.0 µs | 2 |",
      "| B | 1.50 ms | – |",
    ]);
  });

  test("show numbers with a sensible precision", () => {
    expect(format(12_345.6, "/s")).toBe("12,346/s");
    expect(format({ median: 1.5, low: 1, high: 2 }, "×")).toBe("1.50 (1.00–2.00)");
    expect(format({ median: 1, low: 1, high: 1 }, "×")).toBe("1.00");
    expect(format(undefined, "ms")).toBe("–");
    expect(format(Number.NaN, "ms")).toBe("–");
    expect(format(0.04, "%")).toBe("0.04 %");
  });
});

/** Enough of XML for what we write: throws unless every element is closed and every text escaped. */
function parse(xml: string): { names: string[]; text: string } {
  const open: string[] = [];
  const names: string[] = [];
  let text = "";
  let rest = xml;
  while (rest !== "") {
    const tag = /^<(\/?)([a-z]+)((?: [a-zA-Z0-9:-]+="[^"<]*")*) ?(\/?)>/.exec(rest);
    if (tag !== null) {
      const [all, closing, name, , alone] = tag;
      names.push(name!);
      if (closing === "/") {
        if (open.pop() !== name) throw new Error(`</${name}> closes nothing`);
      } else if (alone === "") open.push(name!);
      rest = rest.slice(all.length);
    } else {
      const [words] = /^(?:[^<&]|&(?:amp|lt|gt|quot);)+/.exec(rest) ?? [];
      if (words === undefined) throw new Error(`no XML: ${rest.slice(0, 60)}`);
      text += words;
      rest = rest.slice(words.length);
    }
  }
  if (open.length > 0) throw new Error(`<${open.at(-1)}> is not closed`);
  return { names, text };
}

describe("plots of results", () => {
  const label = fc.string({ unit: "binary" });
  const number = fc.double({ min: -1e3, max: 1e9 });

  test("have a bar for each contestant, whiskers, and an axis with its unit, for light and dark", () => {
    const svg = barPlot({
      title: "A & B",
      axis: "latency",
      unit: "ms",
      bars: [
        { label: "<raw>", value: { median: 2, low: 1, high: 3 } },
        { label: "other", value: 4 },
        { label: "not measured", value: undefined },
      ],
      mark: 1,
    });
    const { names, text } = parse(svg);
    expect(names.filter((name) => name === "rect")).toHaveLength(2);
    expect(text).toContain("A &amp; B");
    expect(text).toContain("&lt;raw&gt;");
    expect(text).toContain("latency, ms");
    expect(svg).toContain("prefers-color-scheme: dark");
    expect(svg).not.toMatch(/href|url\(|<script/);
  });

  test("have a line for each distribution, with its number of samples", () => {
    const series = [
      { label: "a", values: [3, 1, 2] },
      { label: "b", values: [500] },
      { label: "none", values: [] },
    ];
    const svg = distributionPlot({ title: "t", axis: "latency", unit: "ms", series });
    const { names, text } = parse(svg);
    expect(names.filter((name) => name === "polyline")).toHaveLength(2);
    expect(text).toContain("a (3 samples)");
    expect(text).toContain("latency, ms, logarithmic");
  });

  test("are well-formed and within their frame, whatever they are given", () => {
    const sane = (svg: string): void => {
      parse(svg);
      expect(svg).not.toMatch(/NaN|Infinity|undefined/);
      for (const [, x] of svg.matchAll(/ (?:x|x1|x2)="([^"]+)"/g)) {
        expect(Number(x)).toBeGreaterThanOrEqual(0);
        expect(Number(x)).toBeLessThanOrEqual(720);
      }
      for (const [, width] of svg.matchAll(/ width="([^"]+)"/g)) {
        expect(Number(width)).toBeGreaterThanOrEqual(0);
      }
    };
    const words = label.filter((text) => !/NaN|Infinity|undefined/.test(text));
    fc.assert(
      fc.property(
        fc.array(fc.tuple(words, number)),
        fc.option(number),
        words,
        (bars, mark, title) => {
          const given = bars.map(([label, value]) => ({ label, value }));
          const axis = { title, axis: title, unit: "ms" };
          sane(barPlot({ ...axis, bars: given, ...(mark !== null && { mark }) }));
          const series = bars.map(([label, value]) => ({ label, values: [value, value / 3, 0] }));
          sane(distributionPlot({ ...axis, series }));
        },
      ),
      runs(),
    );
  });
});

describe("goals for results", () => {
  const columns: Record<string, [string, string]> = { p50Ms: ["p50", "ms"], rate: ["rate", "/s"] };
  const figures = {
    Holdfast: { p50Ms: 4, rate: { median: 300, low: 10, high: 400 } },
    slow: { rate: 50 },
    fast: { rate: 100 },
  };
  const peers = ["slow", "fast"];
  const verdict = (figure: string, goal: string, who?: string): string =>
    judge({ figure, goal, ...(who && { who }) }, { figures, columns, peers }).verdict;

  test("are met or missed by the median", () => {
    expect(verdict("p50Ms", "≤ 4")).toBe("met");
    expect(verdict("p50Ms", "< 4")).toBe("missed");
    expect(verdict("rate", "≥ 300")).toBe("met");
    expect(verdict("rate", "> 300")).toBe("missed");
    expect(verdict("rate", "≥ 1,000")).toBe("missed");
  });

  test("may be a multiple of another's figure, or of the best peer's", () => {
    expect(verdict("rate", "≥ 6 × slow")).toBe("met");
    expect(verdict("rate", "≥ 3 × best peer")).toBe("met");
    expect(verdict("rate", "≥ 3.1 × best peer")).toBe("missed");
    expect(verdict("rate", "≤ 5 × best peer")).toBe("missed");
  });

  test("are not met by what was not measured", () => {
    expect(verdict("p50Ms", "≤ 4", "slow")).toBe("not measured");
    expect(verdict("p50Ms", "≤ 4 × best peer")).toBe("not measured");
    expect(verdict("rate", "≥ 1 × nobody")).toBe("not measured");
  });

  test("say what was measured, in the figure's unit", () => {
    expect(judge({ figure: "p50Ms", goal: "≤ 5" }, { figures, columns, peers })).toEqual({
      what: "Holdfast: p50",
      goal: "≤ 5 ms",
      measured: "4.00 ms",
      verdict: "met",
    });
    expect(() => verdict("p50Ms", "5")).toThrow("a goal like");
    expect(() => verdict("p99Ms", "≤ 5")).toThrow("no figure p99Ms");
  });
});
