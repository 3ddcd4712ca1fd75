import { spawnSync } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { userInfo } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { defaultFile } from "../../src/cli/store.js";
import { skipUnless } from "../support/needs.js";
import { holdfast, MAIN, makeFolder } from "./helpers.js";

const RUN = ["run", "job", "--", "true"];

describe("the default store", () => {
  it.runIf(process.platform === "linux").each(["", "here", "./here"])(
    "is the same in every folder with HOME=%j",
    async (HOME) => {
      const env = { HOLDFAST_STORE: "", XDG_STATE_HOME: "relative", HOME };
      const seen = [];
      for (const folder of [makeFolder(), makeFolder()]) {
        // `ls` only reads: it creates no file in anybody's home.
        const { code, stderr, stdout } = await holdfast(folder, ["ls"], env);
        expect(code).toBe(0);
        expect(readdirSync(folder)).toEqual([]);
        seen.push(`${stderr}${stdout}`);
      }
      expect(seen[0]).toBe(seen[1]);
      expect(seen[0]).toContain(`${userInfo().homedir}/.local/state/holdfast/locks.db`);
    },
  );

  it("needs a home only where no other setting says where it is", () => {
    const none = () => null;
    expect(defaultFile({ XDG_STATE_HOME: "/s" }, "linux", none)).toBe("/s/holdfast/locks.db");
    expect(defaultFile({ LOCALAPPDATA: "/L" }, "win32", none)).toBe("/L/holdfast/locks.db");
    for (const [env, platform] of [
      [{ XDG_STATE_HOME: "s" }, "linux"],
      [{ XDG_STATE_HOME: "/s" }, "darwin"],
      [{ LOCALAPPDATA: "L" }, "win32"],
    ] as const) {
      expect(() => defaultFile(env, platform, none)).toThrow(
        expect.objectContaining({
          code: "STORE_UNAVAILABLE",
          retryable: false,
          message: expect.stringMatching(/no home .*--store or HOLDFAST_STORE/),
        }),
      );
    }
  });

  it("has no place for a user without a home: 69, unless --if-unavailable says run, or a setting says where", (context) => {
    skipUnless(context, process.getuid?.() === 0, "only root can become a user that has no entry");
    const folder = makeFolder();
    chmodSync(folder, 0o777);
    const as = (args: readonly string[], env: NodeJS.ProcessEnv = {}) =>
      spawnSync(process.execPath, [MAIN, ...args], {
        cwd: folder,
        uid: 54_321,
        gid: 54_321,
        env: { PATH: process.env["PATH"], ...env },
        encoding: "utf8",
      });
    for (const args of [RUN, ["elect", "job", "--", "true"], ["ls"], ["doctor"]]) {
      const { status, stderr } = as(args);
      expect(stderr).toMatch(/no home .*name a store with --store or HOLDFAST_STORE/);
      expect(status).toBe(69);
    }
    const anyway = as(["run", "job", "--if-unavailable", "run", "--", "sh", "-c", "exit 7"]);
    expect(anyway.status).toBe(7);
    const state = join(folder, "state");
    expect(as(RUN, { XDG_STATE_HOME: state }).status).toBe(0);
    expect(existsSync(join(state, "holdfast", "locks.db"))).toBe(true);
  });
});

describe("a file that contains the store's URL", () => {
  const withFile = (text: string, mode = 0o600): { folder: string; file: string } => {
    const folder = makeFolder();
    const file = join(folder, "store.url");
    writeFileSync(file, text);
    chmodSync(file, mode);
    return { folder, file };
  };
  const NO_STORE = { HOLDFAST_STORE: "" };

  it.each(["option", "variable"])(
    "is read for --store-file and HOLDFAST_STORE_FILE: %s",
    async (by) => {
      const { folder, file } = withFile("  sqlite:in-a-file.db\n\n");
      const [args, env] =
        by === "option"
          ? [["--store-file", file], NO_STORE]
          : [[], { ...NO_STORE, HOLDFAST_STORE_FILE: file }];
      const script = 'printf "%s|%s" "$HOLDFAST_STORE" "$HOLDFAST_STORE_FILE" > env';
      const { code } = await holdfast(
        folder,
        ["run", "job", ...args, "--", "sh", "-c", script],
        env,
      );
      expect(code).toBe(0);
      expect(existsSync(join(folder, "in-a-file.db"))).toBe(true);
      for (const command of ["ls", "doctor", "deadlocks"]) {
        expect((await holdfast(folder, [command, ...args], env)).code).toBe(0);
      }
    },
  );

  it("may hold no password if all users can read it, and is refused if all can write it", async () => {
    const secret = withFile("redis://me:s3cret@127.0.0.1:1/0", 0o644);
    for (const args of [["ls"], RUN, ["doctor"]]) {
      const env = { ...NO_STORE, HOLDFAST_STORE_FILE: secret.file };
      const { code, stdout, stderr } = await holdfast(secret.folder, args, env);
      expect(stderr).toContain(`chmod o-rw ${secret.file}`);
      expect(stdout + stderr).not.toContain("s3cret");
      expect(code).toBe(64);
    }
    chmodSync(secret.file, 0o640);
    const args = ["ls", "--store-file", secret.file];
    expect((await holdfast(secret.folder, args, NO_STORE)).code).toBe(69);

    const open = withFile("sqlite:locks.db", 0o644);
    const look = ["ls", "--store-file", open.file];
    expect((await holdfast(open.folder, look, NO_STORE)).code).toBe(0);
    chmodSync(open.file, 0o646);
    expect((await holdfast(open.folder, look, NO_STORE)).code).toBe(64);
  });

  it.each([
    ["", "is empty"],
    ["sqlite:a.db\nsqlite:b.db\n", "has 2 lines"],
    ["nosuch:x", 'has the unknown scheme "nosuch:"'],
    ["memory:", "would exclude no other"],
  ])("is refused with the content %j", async (text, message) => {
    const { folder, file } = withFile(text);
    const { code, stderr } = await holdfast(folder, ["ls", "--store-file", file], NO_STORE);
    expect(stderr).toContain(`holdfast: --store-file ${file}`);
    expect(stderr).toContain(message);
    expect(code).toBe(64);
  });

  it("causes wrong usage if it can't be read, with the reason", async () => {
    const folder = makeFolder();
    mkdirSync(join(folder, "dir"));
    for (const [file, why] of [
      ["none", "ENOENT"],
      ["dir", "EISDIR"],
      ["/dev/zero", "it is longer than 65536 bytes"],
    ] as const) {
      const args = ["run", "x", "--if-unavailable", "run", "--store-file", file, "--", "true"];
      const { code, stderr } = await holdfast(folder, args, NO_STORE);
      expect(stderr).toContain(`--store-file ${file} can't be read: ${why}`);
      expect(code).toBe(64);
    }
  });

  it("contradicts a URL beside it; the command line goes before the environment", async () => {
    const { folder, file } = withFile("sqlite:a.db");
    const both = await holdfast(folder, ["ls", "--store", "sqlite:b.db", "--store-file", file]);
    expect(both.stderr).toContain("--store and --store-file contradict each other");
    expect(both.code).toBe(64);
    const vars = { HOLDFAST_STORE: "sqlite:b.db", HOLDFAST_STORE_FILE: file };
    const twice = await holdfast(folder, ["ls"], vars);
    expect(twice.stderr).toContain("HOLDFAST_STORE and HOLDFAST_STORE_FILE");
    expect(twice.code).toBe(64);
    const { stderr } = await holdfast(folder, ["ls", "--store", "sqlite:c.db"], vars);
    expect(stderr).toContain("/c.db does not exist");
  });
});

describe("an argument of the command line", () => {
  const URL = "redis://me:a/s3cret@h";

  it.each([
    [["ls", URL]],
    [["ls", "a", URL]],
    [[URL]],
    [["help", URL]],
    [["ls", `-s${URL}`]],
    [[`--${URL}`]],
    [["run", "x", "--ttl", URL, "--", "true"]],
    [["run", "x", "--at-most", URL, "--", "true"]],
    [["run", "x", "--if-unavailable", URL, "--", "true"]],
    [["run", "x", "--namespace", URL, "--", "true"]],
    [["ls", "--store", URL]],
  ])("is not repeated in an error when it may hold a password: %j", async (args) => {
    const { code, stdout, stderr } = await holdfast(makeFolder(), args);
    expect(stdout + stderr).not.toContain("s3cret");
    expect(code).toBe(64);
  });

  it("that is a relative path, in a folder that is gone, is wrong usage", () => {
    const line = `rmdir "$PWD"; exec "$0" "$@"`;
    const args = ["-c", line, process.execPath, MAIN, "ls", "--store", "sqlite:x.db"];
    const folder = join(makeFolder(), "gone");
    mkdirSync(folder);
    const { status, stderr } = spawnSync("bash", args, { cwd: folder, encoding: "utf8" });
    expect(stderr).toMatch(/^holdfast: --store: the path is relative, and the current folder /);
    expect(status).toBe(64);
  });

  it("that is a URL in the wrong place is answered with the option --store", async () => {
    const { stderr } = await holdfast(makeFolder(), ["ls", URL]);
    expect(stderr).toContain("name a store with --store");
  });
});
