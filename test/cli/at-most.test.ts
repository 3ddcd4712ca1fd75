import { describe, expect, it } from "vitest";
import { Cli, holdfast, linesOf, makeFolder, until } from "./helpers.js";

const SCRIPT = "echo $HOLDFAST_TOKEN $HOLDFAST_FLOOR; exec sleep 60";

/** Holds the name until the end of the test; resolves with its token and floor. */
async function hold(folder: string, ...options: string[]): Promise<[bigint, bigint]> {
  const run = new Cli(folder, ["run", "gpu", ...options, "--", "sh", "-c", SCRIPT]);
  await until("it holds the name", () => run.stdout.includes("\n"));
  const [token, floor] = run.stdout.trim().split(" ").map(BigInt);
  return [token!, floor!];
}

describe("--at-most", () => {
  it("lets that many hold the name, each with a token of its own", async () => {
    const folder = makeFolder();
    const [first, firstFloor] = await hold(folder, "--at-most", "2");
    const [second, floor] = await hold(folder, "--at-most", "2");
    expect(firstFloor).toBe(first);
    expect(second).toBeGreaterThan(first);
    expect(floor).toBe(first);
    const third = await holdfast(folder, ["run", "gpu", "--at-most", "2", "--", "true"]);
    expect(third.stderr).toMatch(/^holdfast: not run: "gpu" is held by \S+:\d+ and 1 more, for /);
    expect(third.code).toBe(75);
    const { stdout } = await holdfast(folder, ["ls"]);
    expect(stdout.match(/^gpu {3}1 of 2 /gm)?.length).toBe(2);
    const shown = JSON.parse((await holdfast(folder, ["inspect", "gpu", "--json"])).stdout);
    expect(shown).toMatchObject({ limit: 2, holders: [{ permits: 1 }, { permits: 1 }] });
  });

  it("never runs more than that at the same time, and all that wait come to run", async () => {
    const folder = makeFolder();
    const script = "echo in >> log; sleep 0.2; echo out >> log";
    const args = ["run", "gpu", "--at-most", "2", "--wait", "30s", "--", "sh", "-c", script];
    const ends = await Promise.all(Array.from({ length: 6 }, () => holdfast(folder, args)));
    expect(ends.map(({ code }) => code)).toEqual([0, 0, 0, 0, 0, 0]);
    let [running, most] = [0, 0];
    for (const line of linesOf(folder, "log")) {
      running += line === "in" ? 1 : -1;
      most = Math.max(most, running);
    }
    expect(linesOf(folder, "log").length).toBe(12);
    expect(most).toBe(2);
  });

  it("with another number, or for a name in use as a lock, is refused with 64", async () => {
    const folder = makeFolder();
    await hold(folder, "--at-most", "2");
    const cases: [string[], string][] = [
      [["--at-most", "3"], '"gpu" is in use with --at-most 2; use the same number, or wait'],
      [[], '"gpu" is in use with --at-most 2; use another name, or wait'],
      [["--shared"], '"gpu" is in use with --at-most 2; use another name, or wait'],
      [["--wait", "forever"], '"gpu" is in use with --at-most 2; use another name, or wait'],
    ];
    for (const [options, message] of cases) {
      const { code, stderr } = await holdfast(folder, ["run", "gpu", ...options, "--", "true"]);
      expect(stderr).toContain(message);
      expect(code).toBe(64);
    }
    const other = makeFolder();
    await hold(other);
    const { code, stderr } = await holdfast(other, ["run", "gpu", "--at-most", "2", "--", "true"]);
    expect(stderr).toContain('"gpu" is in use as a lock, without --at-most; use another name');
    expect(code).toBe(64);
  });
});
