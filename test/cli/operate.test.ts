import { mkdirSync, readdirSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { Cli, holdfast, makeFolder, until } from "./helpers.js";

interface Shown {
  name: string;
  holders: { holder: string; mode: string; token: string; expiresInMs: number; closed: boolean }[];
  waiters: { holder: string; mode: string; waitingMs: number }[];
  revoked: { holder: string; token: string; by: string; why: string; agoMs: number }[];
}

const shown = async (folder: string, name: string): Promise<Shown> =>
  JSON.parse((await holdfast(folder, ["inspect", name, "--json"])).stdout);

/** Holds a name until the test's end. */
async function hold(folder: string, name: string, ...options: string[]): Promise<Cli> {
  const script = "echo held; exec sleep 60";
  const run = new Cli(folder, ["run", name, ...options, "--", "sh", "-c", script]);
  await until("it holds the name", () => run.stdout.includes("held"));
  return run;
}

describe("holdfast ls", () => {
  it("says that nothing is held, and where", async () => {
    const folder = makeFolder();
    const { code, stdout } = await holdfast(folder, ["ls"]);
    expect(code).toBe(0);
    expect(stdout).toBe(
      `Nothing is held in namespace "default" of sqlite:${join(folder, "locks.db")}.\n`,
    );
    expect((await holdfast(folder, ["ls", "--json"])).stdout).toBe("[]\n");
  });

  it("shows a name as it is, also one that looks like a part of a URL", async () => {
    const folder = makeFolder();
    await hold(folder, "git//user@host");
    expect((await holdfast(folder, ["ls"])).stdout).toContain("\ngit//user@host  exclusive");
    const { code, stderr } = await holdfast(folder, ["run", "git//user@host", "--", "true"]);
    expect(stderr).toContain('"git//user@host" is held by');
    expect(code).toBe(75);
  });

  it("shows no control characters, also where a number should be", async () => {
    const folder = makeFolder();
    await hold(folder, "gpu", "--at-most", "3");
    const db = await openSqlite(join(folder, "locks.db"));
    db.exec("UPDATE holdfast_claims SET permits = 'x' || char(27) || '[2J'");
    db.close();
    for (const args of [["ls"], ["inspect", "gpu"]]) {
      const { stdout } = await holdfast(folder, args);
      expect(stdout).toContain("x?[2J of 3");
      expect(stdout).not.toContain("\u001b");
    }
  });

  it("shows who holds what, as a table and as JSON", async () => {
    const folder = makeFolder();
    const [job] = await Promise.all([
      hold(folder, "order:1", "--note", "mine"),
      hold(folder, "order:2", "--shared"),
      hold(folder, "stock"),
    ]);
    const { code, stdout } = await holdfast(folder, ["ls", "--prefix", "order:"]);
    expect(code).toBe(0);
    const [heading, first, second, ...rest] = stdout.trimEnd().split("\n");
    expect(heading).toMatch(/^NAME +MODE +HOLDER +TOKEN +HELD FOR +EXPIRES IN +WAITERS$/);
    expect(first).toMatch(
      new RegExp(`^order:1  exclusive  \\S+:${job!.pid} \\(mine\\)  \\d{10,}  \\S+ .*  \\d+s +0$`),
    );
    expect(second).toMatch(/^order:2 {2}shared /);
    expect(rest).toEqual([]);

    const all = JSON.parse((await holdfast(folder, ["ls", "--json"])).stdout) as Shown[];
    expect(all.map((one) => one.name)).toEqual(["order:1", "order:2", "stock"]);
    expect(all[0]!.holders[0]).toMatchObject({ mode: "exclusive", closed: false });
    expect(all[0]!.holders[0]!.token).toMatch(/^\d{10,}$/);
    expect(all[1]!.holders[0]).toMatchObject({ mode: "shared" });
  });
});

describe("a name that is held in another namespace", () => {
  it.each([
    [
      ["ls", "--prefix", "order"],
      'Nothing is held under "order" in namespace "default" of sqlite:',
    ],
    [["inspect", "order:1"], 'nobody holds it in namespace "default"'],
    [["release", "order:1", "--force"], 'Nobody held "order:1" in namespace "default".'],
    [["deadlocks", "--namespace", "web"], 'No deadlock in namespace "web".'],
  ])("is not denied by %j, which names the namespace", async (args, text) => {
    const folder = makeFolder();
    await hold(folder, "order:1", "--namespace", "shop");
    const { code, stdout } = await holdfast(folder, args);
    expect(stdout).toContain(text);
    expect(code).toBe(0);
  });
});

describe("a store file that does not exist", () => {
  it.each([
    [["ls"], /^Nothing is held in namespace "default" of sqlite:\/.*\/none\/x\.db\.\n$/],
    [["ls", "--json"], /^\[\]\n$/],
    [["inspect", "job"], /^job\n {2}nobody holds it in namespace "default"\n {2}nobody waits\n$/],
    [["release", "job", "--force"], /^Nobody held "job" in namespace "default"\.\n$/],
    [["deadlocks"], /^No deadlock in namespace "default"\.\n$/],
    [["deadlocks", "--json"], /^\[\]\n$/],
  ])("is reported by %j, and not created", async (args, text) => {
    const folder = makeFolder();
    mkdirSync(join(folder, "none"));
    const { code, stdout, stderr } = await holdfast(folder, [
      ...args,
      "--store",
      "sqlite:none/x.db",
    ]);
    expect(stdout).toMatch(text);
    expect(stderr).toMatch(
      /sqlite:\/.*\/none\/x\.db does not exist: no process has locked a name in it\n$/,
    );
    expect(code).toBe(0);
    expect(readdirSync(join(folder, "none"))).toEqual([]);
  });

  it("has no folder created for it either, when it is the default one", async () => {
    const folder = makeFolder();
    const state = join(folder, "state");
    const env = { HOLDFAST_STORE: "", XDG_STATE_HOME: state, HOME: folder, LOCALAPPDATA: state };
    expect((await holdfast(folder, ["ls"], env)).code).toBe(0);
    expect(readdirSync(folder)).toEqual([]);
  });
});

describe("holdfast inspect", () => {
  it("shows the holder and the waiters in order", async () => {
    const folder = makeFolder();
    await hold(folder, "job", "--note", "first");
    const waiter = new Cli(folder, [
      "run",
      "job",
      "--wait",
      "forever",
      "--note",
      "w1",
      "--",
      "true",
    ]);
    await until("it waits", () => waiter.stderr.includes("waiting"));
    const other = new Cli(folder, [
      "run",
      "job",
      "--wait",
      "forever",
      "--note",
      "w2",
      "--",
      "true",
    ]);
    await until("it waits", () => other.stderr.includes("waiting"));
    expect(other.stderr).toContain("1 ahead of us");

    const { code, stdout } = await holdfast(folder, ["inspect", "job"]);
    expect(code).toBe(0);
    const { holders, waiters } = await shown(folder, "job");
    expect(holders.map((one) => one.holder)).toEqual([expect.stringMatching(/ \(first\)$/)]);
    expect(waiters.map((one) => one.holder.replace(/^.* /, ""))).toEqual(["(w1)", "(w2)"]);
    expect(stdout).toMatch(/^job\n {2}held {6}by \S+ \(first\), exclusive, for /);
    expect(stdout).toContain(`token ${holders[0]!.token}\n`);
    expect(stdout).toMatch(/waiter 1 {2}\S+ \(w1\), exclusive, for .*\n {2}waiter 2 {2}\S+ \(w2\)/);
  });

  it("succeeds for a free name", async () => {
    const folder = makeFolder();
    const { code, stdout } = await holdfast(folder, ["inspect", "job"]);
    expect(code).toBe(0);
    expect(stdout).toBe('job\n  nobody holds it in namespace "default"\n  nobody waits\n');
    expect(await shown(folder, "job")).toEqual({
      name: "job",
      limit: null,
      holders: [],
      waiting: 0,
      waiters: [],
      revoked: [],
    });
  });
});

describe("holdfast release", () => {
  it("without --force only says what it would do", async () => {
    const folder = makeFolder();
    await hold(folder, "job");
    const { code, stderr } = await holdfast(folder, ["release", "job"]);
    expect(code).toBe(64);
    expect(stderr).toContain('takes "job" from its holder, which may still be at work');
    expect((await shown(folder, "job")).holders.length).toBe(1);
  });

  it("with --force frees the name and says whose it was", async () => {
    const folder = makeFolder();
    await hold(folder, "job", "--note", "stuck");
    const { token } = (await shown(folder, "job")).holders[0]!;
    const { code, stdout } = await holdfast(folder, ["release", "job", "--force"]);
    expect(code).toBe(0);
    expect(stdout).toMatch(
      new RegExp(
        `^Took "job" from \\S+ \\(stuck\\) \\(token ${token}, held for .*\\)\\.\nRecorded: by`,
      ),
    );
    expect((await holdfast(folder, ["run", "job", "--", "true"])).code).toBe(0);
    expect((await holdfast(folder, ["release", "job", "--force"])).stdout).toBe(
      'Nobody held "job" in namespace "default".\n',
    );
  });

  it("says who did it and why, to the holder and to everybody who inspects the name", async () => {
    const folder = makeFolder();
    const run = await hold(folder, "job", "--note", "stuck", "--ttl", "1s");
    const { token, holder } = (await shown(folder, "job")).holders[0]!;
    const args = ["release", "job", "--force", "--why", "host is \u202e gone"];
    const { stdout } = await holdfast(folder, args);
    const by = `${hostname()}:\\d+ \\(.+\\)`;
    expect(stdout).toMatch(new RegExp(`\nRecorded: by ${by}: host is \\? gone\n$`));
    const ended = await run.ended;
    expect(ended.code).toBe(74);
    expect(ended.stderr).toMatch(new RegExp(`released by force by ${by}: host is \\? gone;`));

    const info = await shown(folder, "job");
    expect(info.holders).toEqual([]);
    expect(info.revoked).toEqual([
      {
        holder,
        token,
        by: expect.stringMatching(by),
        why: "host is \u202e gone",
        agoMs: expect.any(Number),
      },
    ]);
    const text = (await holdfast(folder, ["inspect", "job"])).stdout;
    expect(text).toMatch(/^job\n {2}nobody holds it in .*\n {2}nobody waits\n {2}taken {5}from /);
    expect(text).toContain(`taken     from ${holder}, token ${token}, `);
    expect(text).toMatch(new RegExp(` ago, .*\n {12}by ${by}: host is \\? gone\n$`));
    // Nobody holds the name: it is not in use.
    expect((await holdfast(folder, ["ls", "--json"])).stdout).toBe("[]\n");
  });

  it("shows the latest release last, and the present holder with a higher token", async () => {
    const folder = makeFolder();
    for (const why of ["first", "second"]) {
      await hold(folder, "job", "--shared");
      await holdfast(folder, ["release", "job", "--force", "--why", why]);
    }
    await hold(folder, "job");
    const { revoked, holders } = await shown(folder, "job");
    expect(revoked.map(({ why }) => why)).toEqual(["first", "second"]);
    expect(BigInt(holders[0]!.token)).toBeGreaterThan(BigInt(revoked[1]!.token));
    expect(BigInt(revoked[1]!.token)).toBeGreaterThan(BigInt(revoked[0]!.token));
  });

  it("opens a name that is kept closed", async () => {
    const folder = makeFolder();
    await holdfast(folder, ["run", "job", "--at-least", "1h", "--", "true"]);
    expect((await holdfast(folder, ["inspect", "job"])).stdout).toMatch(
      /^job\n {2}closed {4}by \S+ \(--at-least or --once-per\), for .*, since .*\n.*\n {12}opens in 59m 5/,
    );
    const { stdout } = await holdfast(folder, ["release", "job", "--force"]);
    expect(stdout).toMatch(/^Opened "job", which \S+ had closed \(token \d+, begun .* ago\)\.\n/);
    expect((await holdfast(folder, ["run", "job", "--", "true"])).code).toBe(0);
  });
});
