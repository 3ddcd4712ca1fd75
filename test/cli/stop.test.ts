import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmodSync, copyFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { skipUnless } from "../support/needs.js";
import {
  Cli,
  canDieWithParent,
  holdfast,
  isAlive,
  linesOf,
  lockStore,
  MAIN,
  makeFolder,
  until,
  untilLine,
} from "./helpers.js";

/** Writes the time every few milliseconds; what it does on TERM is up to the test. */
const beat = (onTerm: string): string =>
  `trap '${onTerm}' TERM; echo $$ > pid; while :; do date +%s%N >> beats; sleep 0.02; done`;
const IGNORES = beat("echo TERM >> log");
const OBEYS = beat("echo TERM >> log; exit 0");

async function start(folder: string, script: string, ...options: string[]): Promise<Cli> {
  const run = new Cli(folder, ["run", "job", ...options, "--", "sh", "-c", script]);
  await until("the child is at work", () => linesOf(folder, "beats").length > 0);
  return run;
}

/** Runs when the name can be acquired, and prints when that was. */
function startNext(folder: string): Cli {
  return new Cli(folder, ["run", "job", "--wait", "30s", "--", "date", "+%s%N"]);
}

const lastBeat = (folder: string): bigint => BigInt(linesOf(folder, "beats").at(-1)!);
const childPid = (folder: string): number => Number(linesOf(folder, "pid")[0]);

describe("when renewals fail", () => {
  it("a child that ignores TERM is killed before another can have the name", async () => {
    const folder = makeFolder();
    const run = await start(folder, IGNORES, "--ttl", "3s");
    const [file, elsewhere] = [join(folder, "locks.db"), join(folder, "elsewhere")];
    renameSync(file, elsewhere);
    await untilLine(folder, "log", "TERM");
    // The lease is no longer renewed. From here on the store grants the name as soon as it has expired.
    renameSync(elsewhere, file);
    const next = await startNext(folder).ended;
    expect(next.code).toBe(0);
    const ended = await run.ended;
    expect(ended.code).toBe(74);
    expect(lastBeat(folder)).toBeLessThan(BigInt(next.stdout));
    expect(isAlive(childPid(folder))).toBe(false);
    expect(ended.stderr).toMatch(/the lease can't be renewed .*; the command is stopped in/);
    expect(ended.stderr).toContain(
      "is lost: it could not be renewed in time; stopping the command",
    );
    expect(ended.stderr).toContain("has not ended in time; killing it");
  });

  it("the lease stays if they succeed again in time, and lasts as long as usual", async () => {
    const folder = makeFolder();
    const run = await start(folder, OBEYS, "--ttl", "3s");
    const unlock = await lockStore(folder);
    await until("it says so", () => run.stderr.includes("can't be renewed"));
    unlock();
    await until("it says so", () => run.stderr.includes("renewed again"));
    expect(linesOf(folder, "log")).toEqual([]);
    const unlockAgain = await lockStore(folder);
    await untilLine(folder, "log", "TERM");
    unlockAgain();
    const ended = await run.ended;
    expect(ended.code).toBe(74);
    expect(ended.stderr).not.toContain("killing");
  });
});

describe("when the lease is lost", () => {
  it("by a release by force, the child gets TERM, and the exit code is 74", async () => {
    const folder = makeFolder();
    const run = await start(folder, OBEYS, "--ttl", "2s");
    const args = ["release", "job", "--force", "--why", "a test"];
    expect((await holdfast(folder, args)).code).toBe(0);
    const ended = await run.ended;
    expect(ended.code).toBe(74);
    expect(ended.stderr).toMatch(/it was released by force by .*: a test; stopping the command/);
    expect(ended.stderr).not.toContain("killing");
    expect(linesOf(folder, "log")).toEqual(["TERM"]);
  });

  it("by --max-hold, the child is stopped and the name released at once", async () => {
    const folder = makeFolder();
    const options = ["--ttl", "1h", "--max-hold", "300ms"];
    const run = await start(folder, OBEYS, ...options);
    const ended = await run.ended;
    expect(ended.code).toBe(74);
    expect(ended.stderr).toContain("maxHold is over");
    expect((await holdfast(folder, ["run", "job", "--", "true"])).code).toBe(0);
  });

  it("unnoticed, the exit code is 74 even if the child succeeds", async () => {
    const folder = makeFolder();
    const command = [process.execPath, MAIN, "release", "job", "--force"];
    const ended = await holdfast(folder, ["run", "job", "--", ...command]);
    expect(ended.code).toBe(74);
    expect(ended.stderr).toContain(
      "was lost before: another command may have run at the same time",
    );
  });

  it("unnoticed, processes that the child left in the background go on", async () => {
    const folder = makeFolder();
    const script = `sleep 60 > out 2>&1 & echo $! > pid; ${process.execPath} ${MAIN} release job --force`;
    const { code, stderr } = await holdfast(folder, ["run", "job", "--", "sh", "-c", script]);
    const pid = childPid(folder);
    const alive = isAlive(pid);
    if (alive) process.kill(pid);
    expect(alive).toBe(true);
    expect(stderr).toMatch(/^holdfast: the command has ended, but .*\n$/);
    expect(code).toBe(74);
  });

  it("while holdfast itself was stopped, the child gets no more time", async () => {
    const folder = makeFolder();
    const run = await start(folder, IGNORES, "--ttl", "2s");
    run.signal("SIGSTOP");
    expect((await startNext(folder).ended).code).toBe(0);
    // On a busy machine, the lease may have been lost, and TERM sent, before holdfast was stopped.
    const before = linesOf(folder, "log");
    run.signal("SIGCONT");
    expect((await run.ended).code).toBe(74);
    expect(isAlive(childPid(folder))).toBe(false);
    expect(linesOf(folder, "log")).toEqual(before);
  });

  it("a child of another user, which can't be killed, is not passed over in silence", async (context) => {
    const isRoot = process.getuid?.() === 0 && canDieWithParent;
    skipUnless(context, isRoot, "needs root and setpriv, of util-linux");
    const folder = makeFolder();
    chmodSync(folder, 0o777);
    // As sudo does: a program that becomes root.
    const becomeRoot = join(folder, "become-root");
    copyFileSync(
      spawnSync("sh", ["-c", "command -v setpriv"], { encoding: "utf8" }).stdout.trim(),
      becomeRoot,
    );
    chmodSync(becomeRoot, 0o4755);
    // It ends by itself if the test fails.
    const script = "for i in $(seq 1500); do sleep 0.02; [ -e end ] && exit; done";
    const child = [becomeRoot, "--reuid=0", "--clear-groups", "sh", "-c", script];
    const times = ["--ttl", "1s", "--max-hold", "300ms"];
    const line = [process.execPath, MAIN, "run", "job", ...times, "--", ...child];
    const user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    const run = spawn("setpriv", [...user, ...line], {
      cwd: folder,
      env: { PATH: process.env["PATH"], HOLDFAST_STORE: `sqlite:${join(folder, "locks.db")}` },
    });
    let stderr = "";
    run.stderr.on("data", (chunk) => {
      stderr += chunk;
    });
    const ended = once(run, "exit");
    await until("it says so", () => stderr.includes("so it can't be killed"));
    expect(stderr).toContain("it goes on WITHOUT the lease");
    writeFileSync(join(folder, "end"), "");
    expect(await ended).toEqual([74, null]);
  });

  it("the child's own children are stopped too, when it ends before them", async () => {
    const folder = makeFolder();
    const script = `trap 'exit 0' TERM; (${IGNORES}) & wait`;
    const run = await start(folder, script, "--ttl", "2s", "--max-hold", "200ms");
    expect((await run.ended).code).toBe(74);
    expect(linesOf(folder, "log")).toEqual(["TERM"]);
    const beats = linesOf(folder, "beats").length;
    expect((await holdfast(folder, ["run", "job", "--", "true"])).code).toBe(0);
    expect(linesOf(folder, "beats").length).toBe(beats);
  });
});

describe("when holdfast is killed", () => {
  it("the child's own children die with it", async () => {
    const folder = makeFolder();
    // The shell waits for a child of its own, as a script does.
    const beats = "while true; do date +%s%N >> beats; sleep 0.05; done";
    const run = await start(folder, `sh -c '${beats}' & echo $! > grandchild; wait`, "--ttl", "2s");
    await until("the grandchild works", () => linesOf(folder, "beats").length > 0);
    const pid = Number(linesOf(folder, "grandchild")[0]);
    expect(isAlive(pid)).toBe(true);
    run.signal("SIGKILL");
    expect((await run.ended).code).toBe(null);
    await until("the grandchild is gone", () => !isAlive(pid));
  });

  it("the child dies with it (setpriv --pdeathsig)", async (context) => {
    skipUnless(context, canDieWithParent, "needs setpriv --pdeathsig, of util-linux on Linux");
    const folder = makeFolder();
    const run = await start(folder, IGNORES, "--ttl", "2s");
    const next = startNext(folder);
    run.signal("SIGKILL");
    expect((await run.ended).code).toBe(null);
    await until("the child is gone", () => !isAlive(childPid(folder)));
    const { code, stdout } = await next.ended;
    expect(code).toBe(0);
    expect(lastBeat(folder)).toBeLessThan(BigInt(stdout));
  });
});
