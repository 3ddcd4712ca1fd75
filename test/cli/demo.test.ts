import { existsSync, readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { drawTimeline, Lane } from "../../src/cli/demo/timeline.js";
import { skipUnless } from "../support/needs.js";
import { Cli, holdfast, isAlive, makeFolder, until } from "./helpers.js";

/** Processes whose command line names the folder. */
function processesOf(folder: string): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => isAlive(pid) && commandLine(pid).includes(folder));
}

function commandLine(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8");
  } catch {
    return "";
  }
}

describe("the demo", () => {
  it("shows the late write refused by the fence, and accepted without", async () => {
    const folder = makeFolder();
    const { code, stdout, stderr } = await holdfast(folder, ["demo"], { TMPDIR: folder });
    expect(stderr).toBe("");
    expect(stdout).toMatch(/A {2}refused: its token is below \d+, which has entered since/);
    expect(stdout).toContain("Counter: 1, writes acknowledged: 1. The counter is right.");
    expect(stdout).toContain("Counter: 1, writes acknowledged: 2. The counter is wrong");
    const tokens = [...stdout.matchAll(/holds the lock with token (\d+)/g)].map((one) =>
      BigInt(one[1]!),
    );
    expect(tokens.length).toBe(4);
    expect(tokens[1]! > tokens[0]! && tokens[3]! > tokens[2]!).toBe(true);
    const lanes = stdout.split("\n").filter((line) => /^ {2}[AB] {2}/.test(line));
    expect(lanes.map((line) => line.replace(/(.)\1+/g, "$1").trim())).toEqual([
      "A =zxR",
      "B .=W",
      "A =zxW",
      "B .=W",
    ]);
    // Piped: no colour, no cursor movement.
    expect(stdout).not.toContain("\u001b");
    expect(code).toBe(0);
    expect(readdirSync(folder)).toEqual([]);
  });

  it("leaves nothing behind on Ctrl-C", async (context) => {
    skipUnless(context, existsSync("/proc/self/cmdline"), "needs /proc");
    const folder = makeFolder();
    // Without setpriv in PATH the demo itself has to end them.
    const demo = new Cli(folder, ["demo"], { TMPDIR: folder, PATH: folder });
    await until("B waits and A is stopped", () => demo.stdout.includes("B  requests the lock"));
    expect(processesOf(folder).length).toBe(2);
    demo.signal("SIGINT");
    expect((await demo.ended).code).toBe(130);
    await until("the workers are gone", () => processesOf(folder).length === 0);
    expect(readdirSync(folder)).toEqual([]);
  });
});

describe("the time line of the demo", () => {
  it("draws states and marks to scale", () => {
    const a = new Lane("A");
    a.becomes("holds", 0);
    a.becomes("paused", 1_000);
    a.becomes("lost", 3_000);
    a.marks("refused", 4_000);
    const b = new Lane("B");
    b.becomes("waits", 1_500);
    b.becomes("holds", 3_000);
    b.marks("accepted", 3_500);
    b.becomes("none", 3_500);
    expect(drawTimeline([a, b], 4_000, 16)).toEqual([
      "     0s  1s  2s  3s  4s",
      "  A  ====zzzzzzzzxxxxR",
      "  B        ......==W",
    ]);
  });
});
