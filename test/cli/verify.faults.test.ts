import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it, type TestContext } from "vitest";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { findFile } from "../../src/verify/lab/requirements.js";
import { describeWith, needs, skipUnless } from "../support/needs.js";
import { Cli, type Ended, holdfast, MAIN, makeFolder, until } from "./helpers.js";

const NO_STORE = { HOLDFAST_STORE: "" };
const RUN_MS = 120_000;

const verify = (...args: string[]): Promise<Ended> =>
  holdfast(makeFolder(), ["verify", ...args], NO_STORE);

/** Two workers for two seconds: as much of a plan as a test has time for. */
const SHORT = ["--seed", "5", "--pick", "w1,w2,f1,t2000"];

describe("holdfast verify", () => {
  it("explains itself", async () => {
    const { code, stdout, stderr } = await verify("--help");
    expect([code, stderr]).toEqual([0, ""]);
    expect(stdout).toContain("Usage: holdfast verify --store URL | --lab NAME");
    for (const option of ["lab", "for", "runs", "seed", "workers", "faults", "pick", "report"]) {
      expect(stdout).toMatch(new RegExp(`^ {2}--${option} `, "m"));
    }
    expect(stdout).toContain("1   a promise was broken");
  });

  it("lists the labs and what each needs", async () => {
    const { code, stdout } = await verify("--list");
    expect(code).toBe(0);
    expect(stdout.split("\n").map((line) => line.split(/ +/).slice(0, 2))).toEqual([
      ["LAB", "NEEDS"],
      ["sqlite", "nothing"],
      ["redis", "redis"],
      ["redis-replica", "redis"],
      ["redis-cluster", "redis"],
      ["redlock", "redis"],
      ["postgres", "postgres"],
      ["postgres-session", "postgres"],
      ["postgres-standby", "postgres"],
      ["pgbouncer", "postgres,"],
      ["etcd", "etcd"],
      ["etcd-cluster", "etcd"],
      ["zookeeper", "zookeeper"],
      ["zookeeper-cluster", "zookeeper"],
      [""],
    ]);
  });

  it("lists the faults of a lab, with the promises that do not hold under them", async () => {
    const { code, stdout } = await verify("--lab", "sqlite", "--faults", "list");
    expect(code).toBe(0);
    expect(stdout).toMatch(/^FAULT +HITS +NOT PROMISED UNDER IT, BECAUSE$/m);
    expect(stdout).toMatch(/^worker killed +worker$/m);
    expect(stdout).toMatch(/^file moved away and back +files +a process that opens the file/m);
  });

  it("lists the faults of a user's store without connecting to it", async () => {
    const folder = makeFolder();
    const file = join(folder, "locks.db");
    const args = ["verify", "--store", `sqlite:${file}`, "--faults", "list"];
    const { code, stdout } = await holdfast(folder, args);
    expect(code).toBe(0);
    expect(stdout.trim().split("\n")).toHaveLength(3);
    expect(existsSync(file)).toBe(false);
  });

  it.each([
    [[], "say what to verify: --store URL for a store of yours, or --lab sqlite|redis|"],
    [["--lab", "sqlite", "--store", "sqlite:a.db"], "--lab and --store contradict each other"],
    [["--lab", "sqlite", "--store-file", "a"], "--lab and --store contradict each other"],
    [["--lab", "oracle"], 'there is no lab "oracle"; there are sqlite, redis,'],
    [["--lab", "toString"], 'there is no lab "toString"'],
    [["--store", "memory:"], "--store: memory: lives in one process, so"],
    [["--lab", "sqlite", "--faults", "flood"], 'sqlite has no fault "flood"; --faults list'],
    [["--lab", "sqlite", "--faults", "worker,connection"], 'sqlite has no fault "connection"'],
    [["--lab", "sqlite", "--seed", "1", "--pick", "all"], '--pick is "all"; it must be workers,'],
    [["--lab", "sqlite", "--seed", "1", "--pick", "w0,t5"], '--pick is "w0,t5"; it must be'],
    [["--lab", "sqlite", "--pick", "w1,w2,t100"], "--pick needs --seed"],
    [["--lab", "sqlite", "--seed", "1", "--pick", "w9,t100"], "the pick names w9, but the run of"],
    [["--lab", "sqlite", "--workers", "1"], '--workers is "1"; it must be a whole number from 2'],
    [["--lab", "sqlite", "--for", "1ms"], '--for is "1ms"'],
    [["--lab", "sqlite", "--runs", "0"], '--runs is "0"; it must be a whole number from 1'],
    [["--lab", "sqlite", "--report", "/nowhere/a.html"], "--report can't be written: ENOENT"],
  ])("refuses %j", async (args, message) => {
    const { code, stdout, stderr } = await verify(...args);
    expect(stderr).toContain(message);
    expect([code, stdout]).toEqual([64, ""]);
  });

  it("says that a store can't be reached, without its password", async () => {
    const { code, stderr } = await verify(
      "--store",
      "redis://me:s3cret@127.0.0.1:1",
      "--runs",
      "1",
    );
    expect(code).toBe(69);
    expect(stderr).toContain("127.0.0.1:1");
    expect(stderr).not.toContain("s3cret");
  });

  it("runs on a user's file, announces it before, and leaves no lock there", {
    timeout: RUN_MS,
  }, async () => {
    const folder = makeFolder();
    const file = join(folder, "locks.db");
    const report = join(folder, "report.html");
    const args = ["verify", "--store", `sqlite:${file}`, "--runs", "1", "--workers", "2"];
    const cli = new Cli(folder, [...args, ...SHORT, "--report", report]);
    await until("it says what it will do", () => cli.stderr.includes("locks in namespaces of its"));
    expect(cli.stdout).toBe("");
    const { code, stdout, stderr } = await cli.ended;
    expect(stderr).toMatch(/^holdfast: verifying your sqlite store at .*locks\.db/);
    // Such a short run may see too little for a verdict.
    expect(stdout).toMatch(/^(Every promise|Too little)/m);
    expect(stdout).toMatch(/^S1 .* held +\d+$/m);
    expect(stdout).toContain(`Report: ${report}`);
    expect(readFileSync(report, "utf8")).toMatch(/^<!doctype html>/i);
    expect([0, 2]).toContain(code);
    // The counter of tokens stays.
    expect(await tablesInUse(file)).toEqual(["holdfast_meta"]);
  });

  it("ends the run when it is interrupted, and shows what it has", {
    timeout: RUN_MS,
  }, async (context) => {
    needsProc(context);
    const folder = makeFolder();
    const cli = new Cli(folder, ["verify", "--lab", "sqlite", "--for", "10m", "--seed", "1"]);
    await until("it has workers", () => childrenOf(cli.pid).length >= 4);
    cli.signal("SIGINT");
    const { code, stdout } = await cli.ended;
    expect(stdout).toMatch(/Tried: SQLite, one file; 0 runs in /);
    expect(code).toBe(2);
  });
});

/** The temporary files of the verifier and its lab. */
const temporary = (folder: string): readonly string[] =>
  readdirSync(folder).filter((name) => /^holdfast-(verify|lab)-/.test(name));

it.each(["SIGTERM", "SIGKILL"] as const)(
  "verify that is ended by %s leaves no temporary folder",
  {
    timeout: RUN_MS,
  },
  async (signal) => {
    if (process.platform !== "linux") return;
    const folder = makeFolder();
    const args = ["verify", "--lab", "sqlite", "--for", "10m", "--seed", "1", "--faults", "worker"];
    const cli = new Cli(folder, args, { TMPDIR: folder });
    await until("it has workers", () => childrenOf(cli.pid).length >= 4);
    expect(temporary(folder)).toHaveLength(2);
    cli.signal(signal);
    await cli.ended;
    await expect.poll(() => temporary(folder), { timeout: 20_000 }).toEqual([]);
  },
);

it("verify at a terminal shows the run, its operations and the present faults in one line", {
  timeout: RUN_MS,
}, async (context) => {
  const script = findFile("script");
  skipUnless(context, script !== null, "needs script(1) for a terminal");
  const command = [process.execPath, MAIN, "verify", "--lab", "sqlite", ...SHORT].join(" ");
  // A new terminal has no width.
  const { stdout } = spawnSync(script!, ["-qec", `stty cols 200; ${command}`, "/dev/null"], {
    encoding: "utf8",
    cwd: makeFolder(),
  });
  const lines = stdout.split("\r\u001b[K").filter((line) => line.startsWith("run "));
  expect(lines[0]).toMatch(/^run 1, \d+ operations.*, \d+ faults?; (no fault now|now: )/);
});

describeWith(["etcd"], "verify on a user's etcd", () => {
  it("leaves no key and no lease there", { timeout: RUN_MS }, async () => {
    await using lab = await Lab.open();
    const { servers, url } = await lab.etcd();
    await servers[0]!.ctl("put", "of somebody else", "kept");
    const { code } = await verify("--store", url, ...SHORT);
    expect([0, 2]).toContain(code);
    const keys = await servers[0]!.ctl("get", "", "--prefix", "--keys-only");
    expect(keys.split("\n").filter((key) => key !== "")).toEqual(["of somebody else"]);
    expect(await servers[0]!.ctl("lease", "list")).toMatch(/found 0 leases/);
  });
});

describeWith(["redis"], "verify on a Redis with a user", () => {
  let lab: Lab;
  let server: RedisServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
    await server.cli("acl", "setuser", "me", "on", ">s3cret", "~*", "&*", "+@all");
  });
  afterAll(() => lab.close());

  it("prints JSON without the password, which no worker has on its command line", {
    timeout: RUN_MS,
  }, async (context) => {
    needsProc(context);
    const url = `redis://me:s3cret@${server.address}:${server.port}/3`;
    const cli = new Cli(makeFolder(), ["verify", "--store", url, "--json", ...SHORT]);
    const workers = await until("it has workers", () => {
      const found = childrenOf(cli.pid).filter((one) => one.includes("worker-process"));
      return found.length >= 2 && found;
    });
    const { code, stdout, stderr } = await cli.ended;
    expect(`${stdout}${stderr}${workers.join()}`).not.toContain("s3cret");
    const result = JSON.parse(stdout);
    expect(result).toMatchObject({ target: "redis", outcome: "held", seed: 5, replay: null });
    expect(result.command).toContain("holdfast verify --store URL --seed 5");
    expect(result.runs).toHaveLength(1);
    expect(code).toBe(0);
    const keys = (await server.cli("-n", "3", "keys", "*")).split("\n");
    // Counters of tokens remain, as announced.
    expect(keys.filter((key) => !/^holdfast:\{\d+\}last$/.test(key))).toEqual([]);
  });
});

describe("verify on a user's store hits its connections, and leaves no lock there:", () => {
  /** A run with faults of connections alone. */
  const hitConnections = async (url: string): Promise<void> => {
    const args = ["--runs", "1", "--seed", "5", "--workers", "2", "--faults", "connection"];
    const { code, stdout, stderr } = await verify("--store", url, ...args, "--json");
    const { outcome, faults, checks } = JSON.parse(stdout);
    const seen = `${stderr}${JSON.stringify(checks)}`;
    // A busy machine may show too little for a verdict.
    expect([0, 2], seen).toContain(code);
    expect(outcome, seen).not.toBe("violated");
    expect(faults, seen).toBeGreaterThan(0);
    expect(checks.find(({ id }: { id: string }) => id === "P3").verdict, seen).toBe("held");
  };

  it("PostgreSQL", { timeout: RUN_MS }, async (context) => {
    needs(context, "postgres");
    await using lab = await Lab.open();
    await hitConnections((await lab.postgres()).url);
  });

  it("PostgreSQL, with locks of sessions", { timeout: RUN_MS }, async (context) => {
    needs(context, "postgres");
    await using lab = await Lab.open();
    await hitConnections(`${(await lab.postgres()).url}?mode=session`);
  });

  it("a quorum of Redis servers", { timeout: RUN_MS }, async (context) => {
    needs(context, "redis");
    await using lab = await Lab.open();
    const nodes = await Promise.all([1, 2, 3].map(() => lab.redis({ persistence: "always" })));
    const hosts = nodes.map(({ address, port }) => `${address}:${port}`);
    await hitConnections(`redlock://${hosts.join()}?maxTtl=30s`);
  });

  it("ZooKeeper", { timeout: RUN_MS }, async (context) => {
    needs(context, "zookeeper");
    await using lab = await Lab.open();
    await hitConnections((await lab.zookeeper()).url);
  });
});

const needsProc = (context: TestContext): void =>
  skipUnless(context, process.platform === "linux", "needs /proc");

/** The command lines of the processes that a process has started. */
function childrenOf(pid: number): readonly string[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        const stat = readFileSync(`/proc/${name}/stat`, "utf8");
        const parent = Number(/^\d+ \(.*\) \S (\d+)/s.exec(stat)?.[1]);
        return parent === pid ? [readFileSync(`/proc/${name}/cmdline`, "utf8")] : [];
      } catch {
        return []; // It has ended meanwhile.
      }
    });
}

/** The tables of a file that have rows. */
async function tablesInUse(file: string): Promise<readonly string[]> {
  const db = await openSqlite(file);
  try {
    const tables = db.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").all();
    return (tables as { name: string }[])
      .map(({ name }) => name)
      .filter((name) => db.prepare(`SELECT * FROM ${name}`).all().length > 0);
  } finally {
    db.close();
  }
}
