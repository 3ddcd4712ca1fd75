import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { expect, onTestFinished, test } from "vitest";
import { Lab } from "../../../src/verify/lab/lab.js";
import { processesIn } from "../../../src/verify/lab/processes.js";
import { describeWith } from "../../support/needs.js";
import { isAlive } from "./verbs.js";

const OWNER = fileURLToPath(new URL("./owner.mjs", import.meta.url));

describeWith(["redis", "postgres"], "a lab leaves nothing behind", () => {
  test.concurrent.for([
    { how: "dispose", ends: [0, null] },
    { how: "exit", ends: [3, null] },
    { how: "exception", ends: [1, null] },
    { how: "forgotten", ends: [0, null] },
    { how: "signal", signal: "SIGINT", ends: [null, "SIGINT"] },
    { how: "signal", signal: "SIGTERM", ends: [null, "SIGTERM"] },
    { how: "signal", signal: "SIGKILL", ends: [null, "SIGKILL"], kinds: ["postgres"] },
  ] as const)(
    "when its owner ends by $how $signal",
    async (example, { expect, onTestFinished }) => {
      const own = mkdtempSync(join(tmpdir(), "holdfast-ends-"));
      onTestFinished(() => rmSync(own, { recursive: true }));
      const mark = join(own, "mark");
      const kinds = "kinds" in example ? example.kinds : ["redis", "redis"];
      const owner = spawn(process.execPath, [OWNER, example.how, mark, ...kinds], {
        stdio: ["ignore", "pipe", "ignore"],
        detached: true,
      });
      onTestFinished(() => void owner.kill("SIGKILL"));
      const ended = once(owner, "exit");
      const [line] = await once(createInterface({ input: owner.stdout }), "line");
      const { folder, pids } = JSON.parse(line) as { folder: string; pids: number[] };
      if ("signal" in example) {
        expect(pids.every(isAlive)).toBe(true);
        // As a terminal does: to all processes that have not left the group.
        process.kill(-owner.pid!, example.signal);
      }
      expect(await ended).toEqual(example.ends);
      await expect.poll(() => existsSync(folder), { timeout: 10_000 }).toBe(false);
      expect(pids.filter(isAlive)).toEqual([]);
      expect(processesIn([folder])).toEqual([]);
      // Registered commands run, the newest first; those that were removed do not.
      expect(readFileSync(mark, "utf8")).toBe("second\nfirst\n");
    },
  );

  test("and ends processes that work in its folder; a process beside it goes on", async () => {
    const lab = await Lab.open();
    const beside = mkdtempSync(`${lab.folder}-beside-`);
    onTestFinished(() => rmSync(beside, { recursive: true }));
    const sleepers = [lab.folder, beside].map((cwd) => spawn("sleep", ["60"], { cwd }));
    await Promise.all(sleepers.map((child) => once(child, "spawn")));
    await lab.close();
    expect(sleepers.map(({ pid }) => isAlive(pid!))).toEqual([false, true]);
    sleepers[1]!.kill();
  });

  test("except what can't be removed, which it names, and it removes the rest", async () => {
    const lab = await Lab.open();
    const redis = await lab.redis();
    const pid = redis.pid!;
    lab.onEnd("echo 'no such thing' >&2; false");
    await expect(lab.close()).rejects.toThrow(/was not cleaned up: no such thing\nfailed: echo/);
    expect(isAlive(pid)).toBe(false);
    expect(existsSync(lab.folder)).toBe(false);
  });

  test("and starts nothing after close, which may be called again", async () => {
    const lab = await Lab.open();
    const redis = await lab.redis();
    const starting = lab.redis();
    const closing = [lab.close(), lab.close()];
    await expect(starting).rejects.toThrow(/closed|did not start/);
    await Promise.all(closing);
    expect(redis.state).toBe("down");
    await expect(redis.start()).rejects.toThrow("the lab is closed");
    await expect(lab.redis()).rejects.toThrow("the lab is closed");
    await expect(redis.cli("ping")).rejects.toThrow("the lab is closed");
    expect(() => lab.onEnd("true")).toThrow("the lab is closed");
    expect(existsSync(lab.folder)).toBe(false);
  });
});
