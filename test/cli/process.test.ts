import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { skipUnless } from "../support/needs.js";
import {
  Cli,
  CTRL_C,
  canMakeTerminals,
  isAlive,
  linesOf,
  MAIN,
  makeFolder,
  Terminal,
  until,
} from "./helpers.js";

describe("an error that nothing catches", () => {
  it("ends with 70, kills the child, and hides passwords", async () => {
    const folder = makeFolder();
    const fault = `import { existsSync } from "node:fs";
      const error = Object.assign(new TypeError("no redis://u:secret@h"), { input: "//u:secret@h" });
      setInterval(() => { if (existsSync("log")) throw error; }, 20).unref();`;
    writeFileSync(join(folder, "fault.mjs"), fault);
    const args = ["run", "job", "--", "sh", "-c", "echo $$ > log; while true; do sleep 0.02; done"];
    const run = new Cli(folder, args, { NODE_OPTIONS: "--import=./fault.mjs" });
    const { code, stderr } = await run.ended;
    expect(stderr).toMatch(/this is a bug in holdfast: TypeError: no redis:\/\/\*\*\*@h\n +at /);
    expect(stderr).not.toContain("secret");
    expect(code).toBe(70);
    const pid = Number(linesOf(folder, "log")[0]);
    await until("the child is killed", () => !isAlive(pid));
  });
});

describe("output that can't be written", () => {
  it("ends with 1 and the reason", () => {
    const folder = makeFolder();
    // The system refuses to write to files, as it does when a disk is full.
    const line = `trap '' XFSZ; ulimit -f 0; exec "$0" "$@" > out`;
    const { status, stderr } = spawnSync("bash", ["-c", line, process.execPath, MAIN, "--help"], {
      cwd: folder,
      encoding: "utf8",
    });
    expect(stderr).toMatch(/^holdfast: can't write the output: EFBIG/);
    expect(status).toBe(1);
  });
});

describe("Ctrl-C at a question of holdfast advise", () => {
  it("ends it with 130, on a line of its own", async (context) => {
    skipUnless(context, canMakeTerminals, "needs script(1), of bsdutils");
    const terminal = new Terminal("advise", "memory:");
    await terminal.shows("[nuisance] ");
    terminal.type(CTRL_C);
    expect(await terminal.exited).toBe(130);
    expect(terminal.text).toMatch(/\r\n$/);
  });
});
