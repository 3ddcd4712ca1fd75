import { spawn } from "node:child_process";
import { chmodSync, mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { describe, expect, it, onTestFinished } from "vitest";
import { findCommand } from "../../src/cli/run/find.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { describeWith, skipUnless } from "../support/needs.js";
import { asOrdinaryUser } from "../support/user.js";
import {
  Cli,
  canMakeTerminals,
  holdfast,
  linesOf,
  MAIN,
  makeFolder,
  until,
  untilLine,
} from "./helpers.js";

/** Prints that it has begun, and runs until the file `end` is there. */
const UNTIL_END = "echo begun >> log; while [ ! -e end ]; do sleep 0.02; done; echo over >> log";

async function startHolder(folder: string, ...options: string[]): Promise<Cli> {
  const holder = new Cli(folder, ["run", "job", ...options, "--", "sh", "-c", UNTIL_END]);
  await untilLine(folder, "log", "begun");
  return holder;
}

function endHolder(folder: string): void {
  writeFileSync(join(folder, "end"), "");
}

describe("holdfast run", () => {
  it.each([
    ["0 when the child succeeds", "exit 0", 0],
    ["the code of a child that fails", "exit 41", 41],
    ["128+n when a signal ends the child", "kill -TERM $$", 143],
    ["128+9 when the child is killed", "kill -KILL $$", 137],
  ])("exits with %s", async (_, script, code) => {
    const ended = await holdfast(makeFolder(), ["run", "job", "--", "sh", "-c", script]);
    expect(ended).toEqual({ code, stdout: "", stderr: "" });
  });

  it("gives all arguments after -- to the child, also those that look like options", async () => {
    const args = ["run", "job", "--", "printf", "%s;", "--ttl", "007", "--", "", "a b"];
    expect((await holdfast(makeFolder(), args)).stdout).toBe("--ttl;007;--;;a b;");
  });
});

describe("a command that can't be run is found before the name is claimed", () => {
  it.each([
    ["is not in PATH", "no-such-command", 127],
    ["is no file", "./no-such-file", 127],
    ["is a folder", "./folder", 126],
    ["is not executable", "./plain", 126],
    ["is not executable in PATH", "plain", 126],
  ])("because it %s", async (_, command, code) => {
    const folder = makeFolder();
    mkdirSync(join(folder, "folder"));
    writeFileSync(join(folder, "plain"), "#!/bin/sh\n", { mode: 0o644 });
    // The store does not exist: had it been used, the code would be 69.
    const env = { PATH: `${process.env["PATH"]}:${folder}`, HOLDFAST_STORE: "sqlite:none/x.db" };
    const ended = await holdfast(folder, ["run", "job", "--", command], env);
    expect(ended.code).toBe(code);
    expect(ended.stderr).toContain(JSON.stringify(command));
  });

  it("where PATH has an entry that can't be read, or the name is too long", () => {
    const folder = makeFolder();
    symlinkSync("loop", join(folder, "loop"));
    writeFileSync(join(folder, "tool"), "", { mode: 0o755 });
    const path = `${join(folder, "loop")}:${join(folder, "tool")}:${folder}`;
    expect(findCommand("tool", path)).toBe("yes");
    expect(findCommand("loop", path)).toBe("no");
    expect(findCommand(join(folder, "loop"))).toBe("no");
    expect(findCommand("x".repeat(5_000), path)).toBe("no");
    expect(findCommand(`./${"x".repeat(5_000)}`)).toBe("no");
  });

  it("where PATH has a folder that this user may not search", async () => {
    const folder = makeFolder();
    mkdirSync(join(folder, "barred"));
    writeFileSync(join(folder, "barred", "tool"), "", { mode: 0o755 });
    chmodSync(join(folder, "barred"), 0);
    await asOrdinaryUser(() => {
      expect(findCommand("tool", join(folder, "barred"))).toBe("no");
      expect(findCommand(join(folder, "barred", "tool"))).toBe("not-executable");
    });
    chmodSync(join(folder, "barred"), 0o700);
  });

  it("except a missing interpreter, which is 127 too, and then the name is free again", async () => {
    const folder = makeFolder();
    writeFileSync(join(folder, "script"), "#!/no/such/interpreter\n");
    chmodSync(join(folder, "script"), 0o755);
    expect((await holdfast(folder, ["run", "job", "--", "./script"])).code).toBe(127);
    expect((await holdfast(folder, ["run", "job", "--", "true"])).code).toBe(0);
  });
});

describe("where setpriv is missing or can't be used", () => {
  it.each([
    ["missing", ""],
    ["of another kind", "#!/bin/sh\nexit 1\n"],
  ])("the child runs without it: %s", async (_, setpriv) => {
    const folder = makeFolder();
    if (setpriv !== "") writeFileSync(join(folder, "setpriv"), setpriv, { mode: 0o755 });
    const args = ["run", "job", "--", "/bin/sh", "-c", "exit 9"];
    expect((await holdfast(folder, args, { PATH: folder })).code).toBe(9);
  });
});

describe("the child of holdfast run can read", () => {
  it("its name, its token, its floor and its holder", async () => {
    const print = "env | grep ^HOLDFAST_ | grep -v STORE | sort";
    const args = ["run", "--shared", "007", "--note", "of mine", "--", "sh", "-c", print];
    const { stdout } = await holdfast(makeFolder(), args);
    const seen = Object.fromEntries(
      stdout
        .trim()
        .split("\n")
        .map((line) => line.split("=")),
    );
    expect(Object.keys(seen)).toEqual(
      ["FLOOR", "HOLDER", "NAME", "TOKEN"].map((one) => `HOLDFAST_${one}`),
    );
    expect(seen["HOLDFAST_NAME"]).toBe("007");
    expect(seen["HOLDFAST_TOKEN"]).toMatch(/^[1-9][0-9]{9,}$/);
    expect(seen["HOLDFAST_FLOOR"]).toBe(seen["HOLDFAST_TOKEN"]);
    expect(seen["HOLDFAST_HOLDER"]).toMatch(/^\S+:\d+ \(of mine\)$/);
  });

  it("the same token in ls, while it runs", async () => {
    const folder = makeFolder();
    const inside = `echo $HOLDFAST_TOKEN; ${process.execPath} ${MAIN} ls --json`;
    const { stdout } = await holdfast(folder, ["run", "job", "--", "sh", "-c", inside]);
    const [token, ...json] = stdout.split("\n");
    expect(JSON.parse(json.join("\n"))[0].holders[0].token).toBe(token);
  });
});

describe("a name that is held", () => {
  it("is claimed once without --wait: the exit code is 75, and the message says who holds it", async () => {
    const folder = makeFolder();
    const holder = await startHolder(folder, "--note", "night shift");
    const ended = await holdfast(folder, ["run", "job", "--", "sh", "-c", "echo ran >> log"]);
    expect(ended.code).toBe(75);
    expect(ended.stderr).toMatch(
      /^holdfast: not run: "job" is held by \S+:\d+ \(night shift\), for .* \(since .*\) \(tried once, see --wait\)\n$/,
    );
    expect(ended.stderr).toContain(`:${holder.pid} `);
    const quiet = await holdfast(folder, ["run", "job", "--quiet", "--", "true"]);
    expect(quiet).toEqual({ code: 75, stdout: "", stderr: "" });
    // Another namespace is another name.
    expect((await holdfast(folder, ["run", "job", "--namespace", "b", "--", "true"])).code).toBe(0);
    endHolder(folder);
    expect((await holder.ended).code).toBe(0);
    expect(linesOf(folder, "log")).toEqual(["begun", "over"]);
  });

  it("is waited for with --wait, and acquired as soon as it is free", async () => {
    const folder = makeFolder();
    const holder = await startHolder(folder);
    const args = ["run", "job", "--wait", "forever", "--", "sh", "-c", "echo next >> log"];
    const waiter = new Cli(folder, args);
    await until("it says that it waits", () => waiter.stderr.includes('waiting: "job" is held by'));
    endHolder(folder);
    expect((await holder.ended).code).toBe(0);
    const freeAtMs = performance.now();
    expect((await waiter.ended).code).toBe(0);
    // The waiter was notified. By itself it would check after a third of its ttl of 30 s.
    expect(performance.now() - freeAtMs).toBeLessThan(5_000);
    expect(linesOf(folder, "log")).toEqual(["begun", "over", "next"]);
    expect(waiter.stderr.split("\n").length).toBe(2);
  });

  it("shows the wait on a terminal in one line, which is cleared", async (context) => {
    skipUnless(context, canMakeTerminals, "needs script(1), of bsdutils");
    const folder = makeFolder();
    const holder = await startHolder(folder);
    const line = `${process.execPath} ${MAIN} run job --wait forever -- echo got it`;
    const terminal = spawn("script", ["-qec", line, "/dev/null"], {
      cwd: folder,
      env: { ...process.env, HOLDFAST_STORE: `sqlite:${join(folder, "locks.db")}` },
      stdio: ["ignore", "pipe", "inherit"],
    });
    const exited = new Promise((resolve) => terminal.once("exit", resolve));
    let text = "";
    terminal.stdout.on("data", (chunk) => {
      text += chunk;
    });
    await until("it was drawn twice", () => text.split("\r\u001b[Kwaiting ").length > 2);
    endHolder(folder);
    expect(await exited).toBe(0);
    expect((await holder.ended).code).toBe(0);
    const [, first, ...others] = text.split("\r\u001b[K");
    expect(first).toMatch(/^waiting \d+ms: "job" is held by \S+:\d+, for \S+ \(since/);
    expect(others.at(-1)).toBe("got it\r\n");
    // A line with wide characters must not wrap, and other output may.
    expect(text.split("\u001b[?7l\r\u001b[Kwaiting ").length).toBeGreaterThan(2);
    expect(text.lastIndexOf("\u001b[?7h")).toBeGreaterThan(text.lastIndexOf("\u001b[?7l"));
  });

  it("is given up after --wait with 75", async () => {
    const folder = makeFolder();
    await startHolder(folder);
    const ended = await holdfast(folder, ["run", "job", "--wait", "1200ms", "--", "true"]);
    expect(ended.code).toBe(75);
    expect(ended.stderr).toContain("(waited 1.2s)");
    endHolder(folder);
  });

  it("is given up on a signal, and no ticket is left", async () => {
    const folder = makeFolder();
    const holder = await startHolder(folder);
    const waiter = new Cli(folder, ["run", "job", "--wait", "forever", "--", "true"]);
    await until("it waits", () => waiter.stderr.includes("waiting"));
    const before = JSON.parse((await holdfast(folder, ["inspect", "job", "--json"])).stdout);
    expect(before.waiters.length).toBe(1);
    waiter.signal("SIGINT");
    const ended = await waiter.ended;
    expect(ended.code).toBe(130);
    expect(ended.stderr).toContain("SIGINT: gave up waiting");
    const after = JSON.parse((await holdfast(folder, ["inspect", "job", "--json"])).stdout);
    expect(after.waiters).toEqual([]);
    endHolder(folder);
    await holder.ended;
  });

  it("can be held by several with --shared", async () => {
    const folder = makeFolder();
    const holder = await startHolder(folder, "--shared");
    expect((await holdfast(folder, ["run", "job", "--shared", "--", "true"])).code).toBe(0);
    expect((await holdfast(folder, ["run", "job", "--", "true"])).code).toBe(75);
    endHolder(folder);
    await holder.ended;
  });

  it("stays closed for --at-least after the child has ended", async () => {
    const folder = makeFolder();
    const first = await holdfast(folder, ["run", "job", "--at-least", "1h", "--", "true"]);
    expect(first.code).toBe(0);
    const second = await holdfast(folder, ["run", "job", "--", "true"]);
    expect(second.code).toBe(75);
    expect(second.stderr).toMatch(/"job" is closed for another 59m 5\ds/);
  });

  it("keeps competing runs apart, with rising tokens", async () => {
    const folder = makeFolder();
    writeFileSync(join(folder, "count"), "0");
    const script =
      "n=$(cat count); echo $HOLDFAST_TOKEN >> tokens; sleep 0.03; echo $((n + 1)) > count";
    const args = ["run", "job", "--wait", "30s", "--", "sh", "-c", script];
    const codes = await Promise.all(
      Array.from({ length: 6 }, async () => (await holdfast(folder, args)).code),
    );
    expect(codes).toEqual([0, 0, 0, 0, 0, 0]);
    expect(readFileSync(join(folder, "count"), "utf8")).toBe("6\n");
    const tokens = linesOf(folder, "tokens").map(BigInt);
    expect(tokens.every((token, i) => i === 0 || token > tokens[i - 1]!)).toBe(true);
  });
});

describe("signals to holdfast run", () => {
  it("go to the child's group", async () => {
    const folder = makeFolder();
    const traps = ["INT", "HUP", "QUIT", "USR1", "USR2", "WINCH", "CONT"];
    const script =
      traps.map((one) => `trap 'echo ${one} >> log' ${one}; `).join("") +
      "trap 'echo TERM >> log; exit 7' TERM; echo begun >> log; while :; do sleep 0.02; done";
    const run = new Cli(folder, ["run", "job", "--", "sh", "-c", script]);
    await untilLine(folder, "log", "begun");
    for (const one of [...traps, "TERM"]) {
      run.signal(`SIG${one}` as NodeJS.Signals);
      await untilLine(folder, "log", one);
    }
    expect((await run.ended).code).toBe(7);
  });

  it("reach the child's own children", async () => {
    const folder = makeFolder();
    const inner =
      "trap 'echo inner >> log; exit' TERM; echo begun >> log; while :; do sleep 0.02; done";
    const script = `trap 'wait; exit 3' TERM; sh -c "${inner}" & wait`;
    const run = new Cli(folder, ["run", "job", "--", "sh", "-c", script]);
    await untilLine(folder, "log", "begun");
    run.signal("SIGTERM");
    await untilLine(folder, "log", "inner");
    expect((await run.ended).code).toBe(3);
  });

  it("change nothing if the child ignores them, as with nohup after --", async () => {
    const folder = makeFolder();
    const script = `trap '' HUP; ${UNTIL_END}`;
    const run = new Cli(folder, ["run", "job", "--", "sh", "-c", script]);
    await untilLine(folder, "log", "begun");
    run.signal("SIGHUP");
    expect((await holdfast(folder, ["run", "job", "--", "true"])).code).toBe(75);
    endHolder(folder);
    expect((await run.ended).code).toBe(0);
    expect(linesOf(folder, "log")).toEqual(["begun", "over"]);
  });

  it("do not suspend holdfast by SIGTSTP, which would stop renewing", async () => {
    const folder = makeFolder();
    const holder = await startHolder(folder);
    holder.signal("SIGTSTP");
    await until("it says so", () => holder.stderr.includes("can't be suspended"));
    endHolder(folder);
    expect((await holder.ended).code).toBe(0);
  });
});

describe("the store of holdfast run", () => {
  it("causes 69 if it can't be used", async () => {
    const { code, stderr } = await holdfast(makeFolder(), ["run", "job", "--", "true"], {
      HOLDFAST_STORE: "sqlite:no/such/folder/x.db",
    });
    expect(code).toBe(69);
    expect(stderr).toContain("can't be opened");
  });

  it("is no obstacle with --if-unavailable run: a warning, and no token", async () => {
    const print = "echo name=$HOLDFAST_NAME token=$HOLDFAST_TOKEN; exit 5";
    const args = ["run", "job", "--if-unavailable", "run", "--", "sh", "-c", print];
    const ended = await holdfast(makeFolder(), args, {
      HOLDFAST_STORE: "sqlite:no/such/folder/x.db",
      HOLDFAST_TOKEN: "1",
    });
    expect(ended.code).toBe(5);
    expect(ended.stdout).toBe("name=job token=\n");
    expect(ended.stderr).toContain('running WITHOUT the lock on "job"');
  });

  it.each([
    ["run", "SIGTERM", 143, ["--if-unavailable", "run"]],
    ["run", "SIGINT", 130, []],
    ["elect", "SIGHUP", 129, []],
  ] as const)(
    "does not delay a signal when it hangs: %s ends by %s, and runs nothing",
    async (of, signal, code, options) => {
      const folder = makeFolder();
      let connected = false;
      const silent = createServer(() => {
        connected = true;
      });
      await new Promise<void>((listening) => silent.listen(0, "127.0.0.1", listening));
      onTestFinished(() => void silent.close());
      const { port } = silent.address() as AddressInfo;
      const args = [of, "job", ...options, "--", "sh", "-c", "echo begun >> log"];
      const run = new Cli(folder, args, { HOLDFAST_STORE: `etcd://127.0.0.1:${port}` });
      await until("it connects", () => connected);
      run.signal(signal);
      const ended = await run.ended;
      expect(ended.code).toBe(code);
      expect(ended.stderr).toContain(`${signal}: gave up waiting for "job"`);
      expect(linesOf(folder, "log")).toEqual([]);
    },
  );

  it("causes 69 if it has a newer format", async () => {
    const folder = makeFolder();
    expect((await holdfast(folder, ["run", "job", "--", "true"])).code).toBe(0);
    const db = await openSqlite(join(folder, "locks.db"));
    db.exec("UPDATE holdfast_meta SET format = 99");
    db.close();
    for (const args of [["run", "job", "--", "true"], ["ls"]]) {
      const { code, stderr } = await holdfast(folder, args);
      expect(stderr).toContain("has format 99");
      expect(code).toBe(69);
    }
    const args = ["run", "job", "--if-unavailable", "run", "--", "sh", "-c", "exit 5"];
    expect((await holdfast(folder, args)).code).toBe(5);
  });

  it("is by default a file that only this user can reach, and --verbose says how far it reaches", async () => {
    const folder = makeFolder();
    const env = { HOLDFAST_STORE: "", XDG_STATE_HOME: join(folder, "state%?"), HOME: folder };
    const { code, stderr } = await holdfast(folder, ["run", "job", "--verbose", "--", "true"], env);
    expect(code).toBe(0);
    expect(stderr).toContain("only processes here are excluded");
    if (process.platform !== "linux") return;
    expect(statSync(join(folder, "state%?", "holdfast")).mode & 0o777).toBe(0o700);
    expect(statSync(join(folder, "state%?", "holdfast", "locks.db")).isFile()).toBe(true);
  });
});

describeWith(["redis"], "an option that the store can't do", () => {
  it("is wrong usage, and CMD does not run without the lock under --if-unavailable run", async () => {
    await using lab = await Lab.open();
    const servers = await Promise.all([1, 2, 3].map(() => lab.redis({ persistence: "always" })));
    const store = `redlock://${servers.map(({ url }) => new URL(url).host).join(",")}`;
    for (const option of [["--shared"], ["--at-most", "2"]] as const) {
      const args = ["run", "job", "--store", store, ...option, "--if-unavailable", "run"];
      const { code, stdout, stderr } = await holdfast(makeFolder(), [...args, "--", "echo", "ran"]);
      expect(stderr).toMatch(
        new RegExp(`^holdfast: the store \\(quorum of Redis\\) can't do ${option[0]}: .+ \\(see`),
      );
      expect(code).toBe(64);
      expect(stdout).toBe("");
    }
    // Not an option that was given: the default ttl is no longer than the store's longest.
    for (const command of ["run", "elect"]) {
      const args = [command, "job", "--store", `${store}?maxTtl=10s`, "--", "echo", "ran"];
      const { code, stdout, stderr } = await holdfast(makeFolder(), args);
      expect([code, stdout, stderr]).toEqual([0, "ran\n", expect.not.stringContaining("ttl")]);
    }
  });
});
