import { spawn, spawnSync } from "node:child_process";
import { join } from "node:path";
import { afterEach, describe, expect, it } from "vitest";
import { changesBetween } from "../../src/cli/events.js";
import { Frames } from "../../src/cli/ls-watch.js";
import type { NameStatus } from "../../src/core/name-status.js";
import { connect, type Locks } from "../../src/index.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { skipUnless } from "../support/needs.js";
import { Cli, holdfast, MAIN, makeFolder, until } from "./helpers.js";

const canMakeTerminals =
  process.platform === "linux" && spawnSync("script", ["-qec", "true", "/dev/null"]).status === 0;

const opened: Locks[] = [];
afterEach(async () => {
  for (const locks of opened.splice(0)) await locks.close();
});
/** Locks of this process, on the store of the folder. */
async function open(folder: string): Promise<Locks> {
  const locks = await connect(`sqlite:${join(folder, "locks.db")}`, { holder: "me" });
  opened.push(locks);
  return locks;
}

/** Others may write to the file: the label of every holder would clear the screen. */
async function poison(folder: string): Promise<void> {
  const db = await openSqlite(join(folder, "locks.db"));
  db.exec("UPDATE holdfast_claims SET holder = 'evil' || char(27) || '[2J' || char(155, 8238)");
  db.close();
}

const status = (name: string, more: Partial<NameStatus> = {}): NameStatus => ({
  name,
  limit: null,
  holders: [],
  waiting: 0,
  waiters: [],
  revoked: [],
  ...more,
});
const holder = (token: bigint, more: object = {}) => ({
  holder: `h${token}`,
  mode: "exclusive" as const,
  token,
  permits: 1,
  heldMs: 5_000,
  expiresInMs: 20_000,
  closed: false,
  ...more,
});

describe("holdfast ls --watch", () => {
  it("draws the table again and again on a terminal, and leaves it as it was", async (context) => {
    skipUnless(context, canMakeTerminals, "needs script(1), of bsdutils");
    const folder = makeFolder();
    const locks = await open(folder);
    await locks.acquire("order:1");
    await poison(folder);
    const line = `stty cols 100 rows 20; exec ${process.execPath} ${MAIN} ls --watch`;
    const terminal = spawn("script", ["-qec", line, "/dev/null"], {
      env: { ...process.env, HOLDFAST_STORE: `sqlite:${join(folder, "locks.db")}` },
      // A terminal hangs up when its input ends.
      stdio: ["pipe", "pipe", "inherit"],
    });
    const exited = new Promise((resolve) => terminal.once("exit", resolve));
    let text = "";
    terminal.stdout.on("data", (chunk) => {
      text += chunk;
    });
    await until("it was drawn", () => text.includes("order:1"));
    await locks.acquire("order:2");
    await until("it was drawn again", () => text.includes("order:2"));
    // Ctrl-C, as the terminal sends it.
    terminal.stdin.write("\u0003");
    expect(await exited).toBe(0);
    expect(text).toMatch(/order:1 +exclusive +evil\?\[2J\?\? +\S+ +\[#{9,10}-?\] \d+s +0\b/);
    expect(text).toContain("\u001b[?1049h\u001b[?25l\u001b[?7l");
    expect(text.trimEnd().endsWith("\u001b[?7h\u001b[?25h\u001b[?1049l")).toBe(true);
    expect(text).not.toContain("\u001b[2J");
    expect(text).not.toMatch(/[\u009b\u202e]/);
  });

  it("shows the time left as a share of the most that was seen, and fits the terminal", () => {
    const frames = new Frames("memory:");
    const look = (expiresInMs: number) => ({
      names: [status("a", { holders: [holder(1n, { expiresInMs })], waiting: 2 }), status("b")],
    });
    expect(frames.next(look(20_000), 24)[2]).toBe(
      "a     exclusive  h1      5s        [##########] 20s  2",
    );
    expect(frames.next(look(10_000), 24)[2]).toContain("[#####-----] 10s");
    expect(frames.next(look(0), 24)[2]).toContain("[----------] 0ms");
    expect(frames.next(look(40_000), 24)[2]).toContain("[##########] 40s");
    const many = { names: Array.from({ length: 50 }, (_, i) => status(`n${i}`)) };
    const lines = frames.next(many, 10);
    expect(lines).toHaveLength(9);
    expect(lines.at(-1)).toBe("and 44 more");
    const cut = { names: Array.from({ length: 1_000 }, (_, i) => status(`n${i}`)) };
    expect(new Frames("memory:").next(cut, 10)[0]).toMatch(
      / memory: {2}the first 1000 names; --prefix TEXT shows others$/,
    );
    const failed = frames.next({ problem: "it is down" }, 10);
    expect(failed[0]).toMatch(/ memory: {2}it is down$/);
    expect(failed.slice(1)).toEqual(lines.slice(1));
  });

  it.each([
    [["--watch"], /--watch needs a terminal; holdfast events/],
    [["--watch", "--json"], /--watch and --json contradict each other/],
  ])("refuses %j without a terminal", async (args, text) => {
    const { code, stderr } = await holdfast(makeFolder(), ["ls", ...args]);
    expect(stderr).toMatch(text);
    expect(code).toBe(64);
  });
});

describe("holdfast events", () => {
  it("prints who is granted what, whose lease ends and how many wait", async () => {
    const folder = makeFolder();
    const locks = await open(folder);
    const first = await locks.acquire("order:1");
    await poison(folder);
    await locks.acquire("stock");
    const cli = new Cli(folder, ["events", "--prefix", "order:"]);
    const line = (text: RegExp): Promise<true> =>
      until(String(text), () => text.test(cli.stdout) || null);
    await line(/^\S+ {2}held {5}"order:1" by evil\?\[2J\?\?, exclusive, token \d+, for \S+\n$/);
    const next = locks.acquire("order:1", { wait: "1m" });
    await line(/ {2}waiters {2}"order:1": 1\n/);
    await first.release();
    const second = await next;
    await line(new RegExp(`  ended    "order:1" by .*, token ${first.token}, for `));
    await line(new RegExp(`  granted  "order:1" by .*, token ${second.token}, for `));
    await line(/ {2}waiters {2}"order:1": 0\n/);
    cli.signal("SIGINT");
    const { code, stdout } = await cli.ended;
    expect(code).toBe(0);
    expect(stdout).not.toMatch(/stock|\u009b|\u202e/);
  });

  it("prints lines of JSON, and ends when nobody reads them", async () => {
    const folder = makeFolder();
    const locks = await open(folder);
    const { token } = await locks.acquire("a");
    const command = `${process.execPath} ${MAIN} events --json | head -n 1; echo "\${PIPESTATUS[0]}"`;
    const bash = spawn("bash", ["-c", command], {
      env: { ...process.env, HOLDFAST_STORE: `sqlite:${join(folder, "locks.db")}` },
      stdio: ["ignore", "pipe", "inherit"],
    });
    let text = "";
    bash.stdout.on("data", (chunk) => {
      text += chunk;
    });
    const ended = new Promise((resolve) => bash.once("close", resolve));
    await until("the first line", () => text.includes("\n"));
    let i = 0;
    const timer = setInterval(() => void locks.acquire(`b${i++}`), 200);
    await ended;
    clearInterval(timer);
    const [line, code] = text.split("\n");
    expect(JSON.parse(line!)).toMatchObject({
      event: "held",
      name: "a",
      holder: "me",
      mode: "exclusive",
      permits: 1,
      token: String(token),
    });
    expect(code).toBe("0");
  });

  it("says that the store fails and that it replies again, and takes up where it was", async () => {
    const folder = makeFolder();
    const locks = await open(folder);
    await locks.acquire("a");
    const cli = new Cli(folder, ["events"]);
    await until("the first look", () => cli.stdout.includes('held     "a"') || null);
    const db = await openSqlite(join(folder, "locks.db"));
    db.exec("ALTER TABLE holdfast_claims RENAME TO hidden");
    await until("the failure", () => cli.stderr.includes("trying again every 500ms\n") || null);
    db.exec("ALTER TABLE hidden RENAME TO holdfast_claims");
    db.close();
    await until("the reply", () => cli.stderr.includes("the store replies again\n") || null);
    await locks.acquire("b");
    await until("the grant", () => cli.stdout.includes('granted  "b"') || null);
    cli.signal("SIGINT");
    const { code, stdout, stderr } = await cli.ended;
    expect(code).toBe(0);
    expect(stdout.trim().split("\n")).toHaveLength(2);
    expect(stderr.match(/trying again|replies again/g)).toEqual(["trying again", "replies again"]);
  });

  it("finds the difference between two lists", () => {
    const one = [status("a", { holders: [holder(1n), holder(2n)], waiting: 1 }), status("b")];
    const events = (...looks: Parameters<typeof changesBetween>): unknown[] =>
      changesBetween(...looks).map((change) =>
        change.event === "waiters"
          ? [change.event, change.name, change.waiting]
          : [change.event, change.name, change.of.token],
      );
    expect(events(null, one)).toEqual([
      ["held", "a", 1n],
      ["held", "a", 2n],
      ["waiters", "a", 1],
    ]);
    expect(events(one, one)).toEqual([]);
    // The lease has ended, and the name is closed by atLeast.
    const closed = status("a", { holders: [holder(2n, { closed: true }), holder(3n)] });
    expect(events(one, [closed])).toEqual([
      ["ended", "a", 1n],
      ["ended", "a", 2n],
      ["granted", "a", 3n],
      ["waiters", "a", 0],
    ]);
    expect(events(one, [])).toEqual([
      ["ended", "a", 1n],
      ["ended", "a", 2n],
      ["waiters", "a", 0],
    ]);
  });
});
