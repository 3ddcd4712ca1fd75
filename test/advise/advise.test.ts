import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { advise } from "../../src/advise/advise.js";
import { advicePage } from "../../src/advise/page.js";
import { decisionPicture } from "../../src/advise/picture.js";
import { choicesOf, flagOf, QUESTIONS, type QuestionId } from "../../src/advise/questions.js";
import { RULES, type RuleId } from "../../src/advise/rules.js";
import { adviceText } from "../../src/advise/text.js";
import { COMMANDS } from "../../src/cli/commands.js";
import { InvalidArgumentError } from "../../src/core/errors.js";
import { parseStoreUrl } from "../../src/stores/registry.js";
import { holdfast, makeFolder } from "../cli/helpers.js";
import { skipUnless } from "../support/needs.js";
import { allAnswers } from "./answers.js";

const root = fileURLToPath(new URL("../..", import.meta.url));
const text = (path: string): string => readFileSync(join(root, path), "utf8");
const corruption = { doubleRun: "corruption" } as const;

describe("the decision", () => {
  it("reaches each rule by its own example", () => {
    for (const [id, { example }] of Object.entries(RULES)) expect(advise(example).rule).toBe(id);
  });

  it("reaches no rule in vain: all answers together reach all rules and all stores", () => {
    const all = [...allAnswers()].map(advise);
    expect(all.length).toBeGreaterThan(5_000);
    expect([...new Set(all.map(({ rule }) => rule))].sort()).toEqual(Object.keys(RULES).sort());
    const stores = new Set(all.map(({ store }) => store?.name).filter(Boolean));
    expect([...stores].sort()).toEqual(choicesOf("stores").sort());
  });

  it("advises a store only among those that you run", () => {
    for (const answers of allAnswers()) {
      const { store } = advise(answers);
      if (store !== null) expect(answers.stores).toContain(store.name);
    }
  });

  it("never advises a lease without a fence for data that could be corrupted, but with a warning", () => {
    for (const answers of allAnswers()) {
      const { lock, fence, rule, whenDown, title } = advise(answers);
      if (answers.doubleRun !== "corruption" || lock !== "lease") continue;
      expect(fence.needed).toBe(true);
      expect(whenDown).toBe("fail closed");
      if (fence.name === null) expect([rule, title]).toEqual(["unfenced", RULES.unfenced.title]);
    }
  });

  it("claims of the stores only what is true of them, and writes code for them alone", () => {
    const byMajority = ["etcd", "zookeeper", "redlock"];
    const wrong: unknown[] = [];
    for (const answers of allAnswers()) {
      const { rule, lock, store, reasons, warnings, code } = advise(answers);
      const stores: readonly string[] = answers.stores!;
      const runsMajority = stores.some((one) => byMajority.includes(one));
      const says = (text: RegExp): boolean =>
        [...reasons, ...warnings].some((note) => text.test(note.text));
      const known = [...stores, answers.writesTo];
      const isTrue =
        (!says(/majority of its servers/) || byMajority.includes(store!.name)) &&
        says(/^None of the stores .* keeps all locks/) ===
          (lock === "lease" && answers.survive === "yes" && !runsMajority) &&
        (lock !== "lease" ||
          answers.survive !== "yes" ||
          !runsMajority ||
          byMajority.includes(store!.name)) &&
        says(/keeps records/) ===
          (rule === "idempotent" && !known.some((one) => /^(sqlite|redis|postgres)$/.test(one!))) &&
        (!says(/a few statements/) || !/idempotent\(/.test(code.text)) &&
        storesIn(code.text).every((one) => known.includes(one));
      if (!isTrue) wrong.push({ answers, code: code.text });
    }
    expect(wrong).toEqual([]);
  });

  it("gives idempotent work the transaction of its own database", () => {
    const code = (answers: Parameters<typeof advise>[0]) =>
      advise({ idempotent: "yes", ...answers }).code.text;
    expect(code({ writesTo: "postgres", stores: ["redis"] })).toContain("ON CONFLICT DO NOTHING");
    expect(code({ writesTo: "sqlite", stores: ["redis"] })).toContain("BEGIN IMMEDIATE");
    expect(code({ writesTo: "redis", stores: ["etcd"] })).toContain("redis://");
    expect(code({ writesTo: "other", stores: ["etcd", "redis"] })).toContain("redis://");
    expect(code({ writesTo: "other", stores: ["etcd"] })).toContain("Idempotency-Key");
  });

  it("prefers a store that survives, and says when there is none", () => {
    expect(advise({ stores: ["redis", "etcd"] }).store?.name).toBe("redis");
    expect(advise({ stores: ["redis", "etcd"], survive: "yes" }).store?.name).toBe("etcd");
    expect(advise({ stores: ["redis", "redlock"], survive: "yes" }).store?.name).toBe("redlock");
    const both = { ...corruption, writesTo: "redis", work: "1m", survive: "yes" } as const;
    expect(advise({ ...both, stores: ["redis", "etcd"] }).store?.name).toBe("etcd");
    const tree = { ...both, writesTo: "zookeeper" } as const;
    expect(advise({ ...tree, stores: ["etcd", "zookeeper"] }).store?.name).toBe("zookeeper");
    const { store, warnings } = advise({ stores: ["redis"], survive: "yes" });
    expect(store?.url).toContain("replicas=1");
    expect(warnings[0]?.text).toMatch(/^None of the stores that you run keeps all locks/);
  });

  it("names all servers of a store that must survive one of them, and the sentinels of Redis", () => {
    const url = (store: string, survive: "yes" | "no") =>
      advise({ stores: [store as "redis"], survive }).store!.url;
    for (const store of ["redis", "redlock", "etcd", "zookeeper"]) {
      expect(parseStoreUrl(url(store, "yes")).hosts.length, store).toBe(3);
    }
    expect(url("redis", "yes")).toMatch(/\?sentinel=mymaster&replicas=1$/);
    for (const store of ["redis", "etcd", "zookeeper"]) {
      expect(parseStoreUrl(url(store, "no")).hosts.length, store).toBe(1);
    }
  });

  it("says for the record of a key what happens when its store is down, and that a failover can lose it", () => {
    const wrong: unknown[] = [];
    for (const answers of allAnswers()) {
      const { rule, code, whenDown, warnings } = advise(answers);
      if (rule !== "idempotent") continue;
      const isRecord = code.text.includes("idempotent(");
      const says = (text: RegExp): boolean => warnings.some((one) => text.test(one.text));
      const isTrue =
        whenDown === (isRecord ? "fail closed" : null) &&
        says(/^You said that work may go on/) === (isRecord && answers.whenDown === "go-on") &&
        says(/can lose its newest records/) === (isRecord && answers.survive === "yes");
      if (!isTrue) wrong.push(answers);
    }
    expect(wrong).toEqual([]);
  });

  it("keeps the lock beside the data, if that store is yours", () => {
    const answers = { ...corruption, writesTo: "postgres", work: "1m" } as const;
    expect(advise({ ...answers, stores: ["etcd", "postgres"] }).store?.name).toBe("postgres");
    expect(advise({ ...answers, stores: ["etcd", "redis"] }).store?.name).toBe("etcd");
  });

  it("tells another runtime what it can do there: HOLDFAST_TOKEN, and exit codes for metrics", () => {
    const wrong: unknown[] = [];
    for (const answers of allAnswers()) {
      const { rule, lock, fence, metrics, warnings, code } = advise(answers);
      if (lock !== "lease") continue;
      const isNode = answers.runtime === "node";
      const says = (text: RegExp): boolean => warnings.some((one) => text.test(one.text));
      const isTrue =
        metrics.every(({ name }) => /^holdfast_/.test(name) === isNode) &&
        /HOLDFAST_TOKEN/.test(fence.name ?? "") === (rule === "fenced" && !isNode) &&
        says(/finds its token in HOLDFAST_TOKEN/) === (rule === "fenced" && !isNode) &&
        (code.language === "js") === isNode;
      if (!isTrue) wrong.push(answers);
    }
    expect(wrong).toEqual([]);
  });

  it("names locks of sessions for a lease in PostgreSQL that need not survive a server", () => {
    const wrong: unknown[] = [];
    for (const answers of allAnswers()) {
      const { store, warnings } = advise(answers);
      const fits = store?.name === "postgres" && answers.survive === "no";
      if (warnings.some(({ text }) => text.includes("?mode=session")) !== fits) wrong.push(answers);
    }
    expect(wrong).toEqual([]);
  });

  it("refuses to go on without the store where data would be corrupted", () => {
    const { whenDown, warnings } = advise({ ...corruption, whenDown: "go-on" });
    expect(whenDown).toBe("fail closed");
    expect(warnings.map(({ text }) => text).join()).toContain("the advice is to stop");
  });
});

/** The stores whose clients or URLs are in a piece of code. */
const storesIn = (code: string): string[] =>
  Object.entries({
    sqlite: /sqlite/i,
    redis: /redis/i,
    redlock: /redlock/,
    postgres: /postgres|"pg"/,
    etcd: /etcd/,
    zookeeper: /zookeeper/,
  })
    .filter(([, sign]) => sign.test(code))
    .map(([name]) => name);

describe("the metrics", () => {
  const all = new Map(
    [...allAnswers()].flatMap((answers) => {
      const { metrics, rule } = advise(answers);
      if (metrics.length === 0) throw new Error(`${rule} has nothing to alert on`);
      return metrics.map((metric) => [metric.name + metric.why, metric] as const);
    }),
  );

  it("are those that prometheusMetrics has", () => {
    const known = text("docs/metrics.md");
    const names = [...all.values()].flatMap(({ name }) => name.match(/holdfast_\w+/g) ?? []);
    expect(names.length).toBeGreaterThan(8);
    for (const name of names) expect(known).toContain(`| \`${name}\` |`);
  });

  it("lead to the section of each alert rule", () => {
    const links = [...all.values()].map(({ link }) => link);
    const alerts = text("monitoring/prometheus-alerts.yml");
    const sections = [...alerts.matchAll(/runbook_url: docs\/(\S+)/g)].map(([, link]) => link);
    expect(sections.length).toBe(alerts.split("- alert:").length - 1);
    for (const section of sections) expect(links).toContain(section);
  });
});

describe("the numbers", () => {
  const timing = (answers: Parameters<typeof advise>[0]) => advise(answers).timing!;

  it.each([
    ["node", 30_000],
    ["go", 30_000],
    ["rust", 30_000],
    ["jvm", 60_000],
  ] as const)("%s needs a ttl of %d ms at least", (runtime, ms) => {
    expect(timing({ runtime, work: "1s" }).ttl.ms).toBe(ms);
  });

  it("are those of the formulas", () => {
    const { ttl, renewal, validity, abortBefore, maxHold, withoutRenewal } = timing({
      work: "20s",
      network: "500ms",
    });
    // 3 × 20 s + 0.5 s, in whole seconds
    expect(ttl.ms).toBe(61_000);
    expect(ttl.formula).toBe("3 × 20s + 500ms = 60500ms, at least 30s for this runtime");
    expect(renewal.ms).toBeCloseTo(61_000 / 3);
    // ttl − (acquired − started) − drift of 1 % and 2 ms
    expect(validity.ms).toBe(61_000 - 500 - 612);
    expect(abortBefore.ms).toBe(6_100);
    expect(maxHold.ms).toBe(200_000);
    expect(withoutRenewal.ms).toBe(200_000);
  });

  it("are shown so that the sums are right", () => {
    const shown = (work: "5s" | "1m"): string =>
      adviceText(advise({ ...corruption, work }), (heading) => heading);
    expect(shown("5s")).toContain("28.698s (30s − 1s − 302ms)");
    expect(shown("5s")).toMatch(/ttl +30s \(/);
    expect(shown("1m")).toMatch(/renewal +every 60\.333s \(181s/);
  });

  it("keep a crashed holder from blocking a name for hours", () => {
    const { ttl, withoutRenewal } = timing({ work: "2h" });
    expect(ttl.ms).toBe(300_000);
    expect(ttl.formula).toContain("at most 5m");
    expect(withoutRenewal.ms).toBe(20 * 3_600_000);
  });

  it("raise maxTtl of a quorum, and mention the limit of ZooKeeper", () => {
    expect(advise({ stores: ["redlock"], work: "1m" }).store?.url).toContain("?maxTtl=181s");
    const { warnings } = advise({ stores: ["zookeeper"] });
    expect(warnings.map(({ link }) => link)).toContain("stores/zookeeper.md");
  });
});

describe("answers", () => {
  it.each([
    [{ doubleRun: "maybe" }, '--double-run is "maybe"; it must be one of "nuisance"'],
    [{ stores: [] }, "--stores must be a list of sqlite, redis"],
    [{ stores: ["mysql"] }, '--stores is "mysql"'],
    [{ work: "5" }, '--work is "5"'],
    [{ network: "1h" }, '--network is "1h"'],
    [{ color: "red" }, 'no option "color"'],
  ])("%j is refused", (answers, message) => {
    expect(() => advise(answers as never)).toThrow(InvalidArgumentError);
    expect(() => advise(answers as never)).toThrow(message);
  });

  it("each have an option of the command line", () => {
    const { options } = COMMANDS.find(({ name }) => name === "advise")!;
    expect(Object.keys(QUESTIONS).map((id) => flagOf(id as QuestionId))).toEqual(
      options.filter((option) => option !== "json"),
    );
  });
});

it("every link leads to a page and a heading", () => {
  const links = new Set(
    [...allAnswers()].flatMap((answers) => {
      const { reasons, warnings, metrics } = advise(answers);
      return [...reasons, ...warnings, ...metrics].map(({ link }) => link);
    }),
  );
  expect(links.size).toBeGreaterThan(10);
  for (const link of links) {
    const [page, heading] = link.split("#");
    expect(existsSync(join(root, "docs", page!)), link).toBe(true);
    if (heading === undefined) continue;
    const headings = [...text(`docs/${page}`).matchAll(/^#+ (.*)$/gm)].map(([, one]) =>
      one!
        .toLowerCase()
        .replaceAll(/[^\p{L}\p{N}_ -]/gu, "")
        .replaceAll(" ", "-"),
    );
    expect(headings, link).toContain(heading);
  }
});

describe("the page and the picture", () => {
  it("are current: npm run advise", () => {
    expect(text("docs/advise.md")).toContain(`<!-- advise -->\n${advicePage()}\n<!-- /advise -->`);
    expect(text("docs/pictures/advise.svg")).toBe(decisionPicture());
  });

  it("show every rule", () => {
    const shown = decisionPicture()
      .replaceAll(/<[^>]*>/g, " ")
      .replaceAll(/\s+/g, " ");
    for (const id of Object.keys(RULES) as RuleId[]) {
      for (const word of RULES[id].title.split(" ")) expect(shown).toContain(word);
    }
    expect(decisionPicture()).toContain("prefers-color-scheme: dark");
  });
});

describe("holdfast advise", () => {
  it("takes flags, and prints text of at most 80 columns but for the code", async () => {
    const args = ["--double-run", "corruption", "--writes-to", "files", "--work", "2m"];
    const { code, stdout } = await holdfast(makeFolder(), ["advise", ...args]);
    expect(code).toBe(0);
    expect(stdout).toContain("A lock with a fence\n");
    expect(stdout).toMatch(/ttl +5m \(3 × 2m \+ 1s = 361s/);
    expect(stdout).toContain("docs/fences.md#files");
    expect(stdout).toContain("docs/runbook.md#stale-token-refused");
    const around = stdout.replace(/\nCode\n.*\n\nWhy\n/s, "");
    for (const line of around.split("\n")) expect(line.length).toBeLessThanOrEqual(80);
  });

  it("prints the same as JSON", async () => {
    const args = ["--stores", "redis, etcd", "--survive", "yes", "--json"];
    const { code, stdout } = await holdfast(makeFolder(), ["advise", ...args]);
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toEqual(
      JSON.parse(JSON.stringify(advise({ stores: ["redis", "etcd"], survive: "yes" }))),
    );
  });

  it("refuses a wrong answer with 64", async () => {
    const { code, stderr } = await holdfast(makeFolder(), ["advise", "--stores", "redis,mysql"]);
    expect(stderr).toContain('--stores is "mysql"; it must be one of "sqlite"');
    expect(code).toBe(64);
  });

  it("asks on a terminal, by number or by word, and again after a wrong answer", (context) => {
    const isThere = existsSync("/usr/bin/script");
    skipUnless(context, isThere, "needs script: sudo apt-get install -y bsdutils");
    // The answers for: double run, idempotent, writes to, work, stores, and the defaults.
    const typed = "perhaps\n2\nno\nfiles\n1m\n5,redis\n\n\n\n\n";
    const command = `${process.execPath} ${join(root, "dist/cli/main.js")} advise`;
    const play = (input: string) =>
      spawnSync("script", ["-qec", command, "/dev/null"], {
        input,
        encoding: "utf8",
        env: { ...process.env, NO_COLOR: "1" },
      });
    const { stdout: shown } = play(typed);
    expect(shown).toContain('--double-run is "perhaps"');
    expect(shown).toContain("A lock with a fence");
    expect(shown).toContain("etcd://127.0.0.1:2379");
    const ended = play("2\nno\n");
    expect(ended.stdout).toMatch(/the input ended before the last question; .* --help/);
    expect(ended.status).toBe(1);
  });
});
