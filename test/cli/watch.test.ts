import { spawn } from "node:child_process";
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { afterEach, describe, expect, it } from "vitest";
import { changesBetween } from "../../src/cli/events.js";
import { lookAgain } from "../../src/cli/look.js";
import { Frames } from "../../src/cli/ls-watch.js";
import type { NameStatus } from "../../src/core/name-status.js";
import { connect, type Locks } from "../../src/index.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { skipUnless } from "../support/needs.js";
import {
  Cli,
  CTRL_C,
  canMakeTerminals,
  holdfast,
  MAIN,
  makeFolder,
  Terminal,
  until,
} from "./helpers.js";

const TAKEN = "\u001b[?1049h\u001b[?25l\u001b[?7l";
const GIVEN_BACK = "\u001b[?7h\u001b[?25h\u001b[?1049l";
const storeOf = (folder: string): string => `sqlite:${join(folder, "locks.db")}`;

const opened: Locks[] = [];
afterEach(async () => {
  for (const locks of opened.splice(0)) await locks.close();
});
/** Locks of this process, on the store of the folder. */
async function open(folder: string): Promise<Locks> {
  const locks = await connect(storeOf(folder), { holder: "me" });
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

const seen = (names: readonly NameStatus[], knowsWaiters = true) => ({ names, knowsWaiters });

describe("holdfast ls --watch", () => {
  it("draws the table again and again on a terminal, and leaves it as it was", async (context) => {
    skipUnless(context, canMakeTerminals, "needs script(1), of bsdutils");
    const folder = makeFolder();
    const locks = await open(folder);
    await locks.acquire("order:1");
    await poison(folder);
    const terminal = new Terminal("ls --watch", storeOf(folder));
    await terminal.shows("order:1");
    await locks.acquire("order:2");
    await terminal.shows("order:2");
    terminal.type(CTRL_C);
    expect(await terminal.exited).toBe(0);
    const { text } = terminal;
    expect(text).toMatch(/order:1 +exclusive +evil\?\[2J\?\? +\S+ +\[#{9,10}-?\] \d+s +0\b/);
    expect(text).toContain(TAKEN);
    expect(text.trimEnd().endsWith(GIVEN_BACK)).toBe(true);
    expect(text).not.toContain("\u001b[2J");
    expect(text).not.toMatch(/[\u009b\u202e]/);
  });

  it("says that a file does not exist yet, and draws its names once it does", async (context) => {
    skipUnless(context, canMakeTerminals, "needs script(1), of bsdutils");
    const folder = makeFolder();
    const terminal = new Terminal("ls --watch", storeOf(folder));
    await terminal.shows("does not exist: no process has locked a name in it");
    const locks = await open(folder);
    await locks.acquire("order:1");
    await terminal.shows("order:1");
    terminal.type(CTRL_C);
    expect(await terminal.exited).toBe(0);
  });

  it("says where it connects to, and ends at once at Ctrl-C, while the store hangs", async (context) => {
    skipUnless(context, canMakeTerminals, "needs script(1), of bsdutils");
    const server = createServer().listen(0, "127.0.0.1");
    context.onTestFinished(() => void server.close());
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    const terminal = new Terminal("ls --watch", `redis://127.0.0.1:${port}`);
    const [socket] = await once(server, "connection");
    context.onTestFinished(() => void socket.destroy());
    await terminal.shows(`connecting to redis://127.0.0.1:${port} …`);
    terminal.type(CTRL_C);
    // 69 would be the end of the attempt to connect.
    expect(await terminal.exited).toBe(0);
    expect(terminal.text).toContain(TAKEN);
    expect(terminal.text.trimEnd().endsWith(GIVEN_BACK)).toBe(true);
  });

  it("gives the terminal back while it is stopped by Ctrl-Z", async (context) => {
    skipUnless(context, canMakeTerminals, "needs script(1), of bsdutils");
    const folder = makeFolder();
    await (await open(folder)).acquire("order:1");
    const terminal = new Terminal("ls --watch", storeOf(folder));
    await terminal.shows("order:1");
    terminal.type("\u001a");
    await until("it goes on", () => {
      // script(1) stops with it.
      terminal.signal("SIGCONT");
      const [, afterIt] = terminal.text.split(GIVEN_BACK);
      return afterIt?.includes(TAKEN);
    });
    terminal.type(CTRL_C);
    expect(await terminal.exited).toBe(0);
  });

  it("gives the terminal back before it says why the store can't be used", async (context) => {
    skipUnless(context, canMakeTerminals, "needs script(1), of bsdutils");
    const terminal = new Terminal("ls --watch", "redis://127.0.0.1:1");
    expect(await terminal.exited).toBe(69);
    expect(terminal.text).toMatch(/ECONNREFUSED/);
    expect(terminal.text.indexOf(GIVEN_BACK)).toBeLessThan(terminal.text.indexOf("ECONNREFUSED"));
  });

  it("shows the time left as a share of the most that was seen, and fits the terminal", () => {
    const frames = new Frames("memory:");
    const look = (expiresInMs: number) =>
      seen([status("a", { holders: [holder(1n, { expiresInMs })], waiting: 2 }), status("b")]);
    expect(frames.next(look(20_000), 24, 80)[2]).toBe(
      "a     exclusive  h1      5s        [##########] 20s  2",
    );
    expect(frames.next(look(10_000), 24, 80)[2]).toContain("[#####-----] 10s");
    expect(frames.next(look(0), 24, 80)[2]).toContain("[----------] 0ms");
    expect(frames.next(look(40_000), 24, 80)[2]).toContain("[##########] 40s");
    const many = seen(Array.from({ length: 50 }, (_, i) => status(`n${i}`)));
    const lines = frames.next(many, 10, 80);
    expect(lines).toHaveLength(9);
    expect(lines.at(-1)).toBe("and 44 more");
    expect(new Frames("memory:").next(seen([status("a")]), 10, 80)[0]).toMatch(/ {2}1 name$/);
    const cut = seen(Array.from({ length: 1_000 }, (_, i) => status(`n${i}`)));
    expect(new Frames("memory:").next(cut, 10, 80)[0]).toMatch(
      / memory: {2}the first 1000 names; --prefix TEXT shows others$/,
    );
    const failed = frames.next({ problem: "it is down since today" }, 12, 12);
    expect(failed.slice(1, 3)).toEqual(["it is down", "since today"]);
    expect(failed.slice(3)).toEqual(lines.slice(1));
  });

  it.each([
    ["invoice:2026-11-19:customer:4711", "worker-17.eu-west-1:48211 (report)"],
    ["a", "worker-17.eu-west-1.compute.internal:48211 (the nightly report of all regions)"],
    ["invoice:2026-11-19:customer:4711:all-items-of-the-year:in-one-name", "h"],
  ])("shortens %j and %j so that the other columns fit 80", (name, label) => {
    const holders = [holder(1n, { holder: label, heldMs: 252_000, expiresInMs: 29_000 })];
    const frames = new Frames("memory:");
    const [, heading, row] = frames.next(seen([status(name, { holders, waiting: 3 })]), 24, 80);
    expect(heading).toMatch(/^NAME +MODE +HOLDER +HELD FOR +TIME LEFT +WAITERS$/);
    expect(row).toMatch(/^\S+ +exclusive +\S.* +4m 12s +\[#{10}\] 29s +3$/);
    expect(row).toContain("…");
    expect(heading!.length).toBe(80);
    // All of it on a wide terminal.
    const [, , wide] = frames.next(seen([status(name, { holders, waiting: 3 })]), 24, 200);
    expect(wide).toContain(name);
    expect(wide).toContain(label);
  });

  it("shows the names with most waiters first, and ? where nobody knows them", () => {
    const names = [
      status("a"),
      status("b", { waiting: 1 }),
      status("c"),
      status("d", { waiting: 9 }),
    ];
    const rows = (known: boolean): string[] =>
      new Frames("memory:").next(seen(names, known), 24, 80).slice(2);
    expect(rows(true).map((row) => row[0])).toEqual(["d", "b", "a", "c"]);
    expect(rows(true)[0]).toMatch(/ 9$/);
    const unknown = rows(false);
    for (const row of unknown) expect(row).toMatch(/ \?$/);
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
      env: { ...process.env, HOLDFAST_STORE: storeOf(folder) },
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

  it("says where it connects to, and ends at once at a signal, while the store hangs", async (context) => {
    const server = createServer().listen(0, "127.0.0.1");
    context.onTestFinished(() => void server.close());
    await once(server, "listening");
    server.on("connection", (socket) => context.onTestFinished(() => void socket.destroy()));
    const { port } = server.address() as AddressInfo;
    const store = `redis://127.0.0.1:${port}`;
    const cli = new Cli(makeFolder(), ["events"], { HOLDFAST_STORE: store });
    await until("it says so", () => cli.stderr.includes(`connecting to ${store} …`));
    cli.signal("SIGINT");
    expect((await cli.ended).code).toBe(0);
  });

  it("keeps no list that was read before, however long it runs", async () => {
    const folder = makeFolder();
    await (await open(folder)).acquire("order:1");
    setFlagsFromString("--expose-gc");
    const collect = runInNewContext("gc") as () => void;
    const looks: WeakRef<object>[] = [];
    let kept = 0;
    await lookAgain({ store: storeOf(folder) }, {}, 1, (look) => {
      looks.push(new WeakRef(look));
      if (looks.length < 50) return;
      collect();
      kept = looks.filter((one) => one.deref() !== undefined).length;
      process.emit("SIGQUIT");
    });
    expect(looks.length).toBeGreaterThanOrEqual(50);
    expect(kept).toBeLessThan(10);
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
