import { describe, expect, it } from "vitest";
import { Lab } from "../../src/verify/lab/lab.js";
import { describeWith } from "../support/needs.js";
import { Cli, holdfast, linesOf, makeFolder, until, untilLine } from "./helpers.js";

const HOLDER = String.raw`\S+:\d+`;

/** Records that it ran, and ends with the given code. */
const job = (period: string, script = "echo ran >> log", ...options: string[]): string[] => [
  ...["run", "job", "--once-per", period, ...options],
  ...["--", "sh", "-c", script],
];

describe("holdfast run --once-per", () => {
  it("runs once in the period, and then says who ran it, when, and when it is next", async () => {
    const folder = makeFolder();
    expect(await holdfast(folder, job("24h"))).toEqual({ code: 0, stdout: "", stderr: "" });
    const again = await holdfast(folder, job("24h"));
    expect(again.stderr).toMatch(
      new RegExp(
        `^holdfast: not run: "job" has been run in this period: ${HOLDER} began \\S+ ago ` +
          String.raw`\([\d:]+\); next in 23h 58m \([-\d: ]+\) \(once per 24h\)\n$`,
      ),
    );
    expect(again.code).toBe(75);
    // --wait 0 is no contradiction.
    const quiet = await holdfast(folder, job("24h", "true", "--quiet", "--wait", "0"));
    expect(quiet).toEqual({ code: 75, stdout: "", stderr: "" });
    expect(linesOf(folder, "log")).toEqual(["ran"]);
  });

  it("runs on one of many machines that start together", async () => {
    const folder = makeFolder();
    const ends = await Promise.all(Array.from({ length: 5 }, () => holdfast(folder, job("1h"))));
    expect(ends.map(({ code }) => code).sort()).toEqual([0, 75, 75, 75, 75]);
    expect(linesOf(folder, "log")).toEqual(["ran"]);
  });

  it("says that the command is running, while it is", async () => {
    const folder = makeFolder();
    const script = "echo begun >> log; while [ ! -e end ]; do sleep 0.02; done";
    const first = new Cli(folder, job("1h", script));
    await untilLine(folder, "log", "begun");
    const { code, stderr } = await holdfast(folder, job("1h"));
    expect(stderr).toMatch(
      new RegExp(`^holdfast: not run: "job" is held by ${HOLDER}, for .*\\(once per 1h\\)\n$`),
    );
    expect(stderr).toContain(`:${first.pid},`);
    expect(code).toBe(75);
  });

  it("counts a run that fails or is killed; a release by force opens the period", async () => {
    const folder = makeFolder();
    for (const [script, code] of [
      ["echo ran >> log; exit 3", 3],
      ["echo ran >> log; kill -KILL $$", 137],
    ] as const) {
      expect((await holdfast(folder, job("1h", script))).code).toBe(code);
      expect((await holdfast(folder, job("1h"))).code).toBe(75);
      expect((await holdfast(folder, ["release", "job", "--force"])).stdout).toMatch(/^Opened/);
    }
    expect((await holdfast(folder, job("1h"))).code).toBe(0);
    expect(linesOf(folder, "log").length).toBe(3);
  });

  it("counts a run whose holdfast was killed", async () => {
    const folder = makeFolder();
    const run = new Cli(folder, job("1h", "echo begun >> log; exec sleep 60", "--ttl", "200ms"));
    await untilLine(folder, "log", "begun");
    run.signal("SIGKILL");
    await run.ended;
    await until("its lease is over", async () =>
      (await holdfast(folder, ["inspect", "job"])).stdout.includes("closed"),
    );
    expect((await holdfast(folder, job("1h"))).stderr).toContain("has been run in this period");
  });

  it("runs again in the next period, which may begin a tenth earlier", async () => {
    const folder = makeFolder();
    const startedMs = performance.now();
    expect((await holdfast(folder, job("1500ms"))).code).toBe(0);
    const begunMs = performance.now();
    let code: number | null;
    do code = (await holdfast(folder, job("1500ms"))).code;
    while (code === 75);
    expect(code).toBe(0);
    expect(performance.now() - startedMs).toBeGreaterThan(1_350);
    expect(performance.now() - begunMs).toBeLessThan(1_500 + 2_000);
    expect(linesOf(folder, "log")).toEqual(["ran", "ran"]);
  });
});

describeWith(["postgres"], "on a store that can't close a name", () => {
  it.each(["--once-per", "--at-least"])(
    "%s is refused by the name that was typed",
    async (option) => {
      await using lab = await Lab.open();
      const { url } = await lab.postgres();
      const args = ["run", "job", "--store", `${url}?mode=session`, option, "1h", "--", "true"];
      const { code, stderr } = await holdfast(makeFolder(), args);
      expect(stderr).toMatch(new RegExp(`^holdfast: the store \\(.+\\) can't do ${option}: `));
      expect(code).toBe(64);
    },
  );
});
