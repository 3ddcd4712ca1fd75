import { writeFileSync } from "node:fs";
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
  makeFolder,
  until,
} from "./helpers.js";

const TTL_MS = 2_000;

const BEGIN = "echo $$ $HOLDFAST_TOKEN >> terms; echo $HOLDFAST_TOKEN >> beats;";
/** Writes its token every few milliseconds; what it does on TERM is up to the test. */
const beat = (onTerm: string): string =>
  `${onTerm} ${BEGIN} while :; do echo $HOLDFAST_TOKEN >> beats; sleep 0.02; done`;
const OBEYS = beat("trap 'echo TERM >> log; exit 5' TERM;");
const IGNORES = beat("trap '' TERM;");
/** Ends by itself, when the file `end` is there. */
const UNTIL_END = `${BEGIN} while [ ! -e end ]; do sleep 0.02; done`;

function candidate(folder: string, script: string, ...options: string[]): Cli {
  const args = ["elect", "job", "--ttl", `${TTL_MS}ms`, ...options];
  return new Cli(folder, [...args, "--", "sh", "-c", script]);
}

/** Resolves when it leads, in its first term or in a later one. */
async function untilElected(one: Cli, times = 1): Promise<void> {
  await until("it is elected", () => one.stderr.split("elected for").length > times);
}

const untilWaiting = (one: Cli): Promise<true> =>
  until("it waits", () => one.stderr.includes("waiting: ") || null);

/** Started one after the other, so that they wait in this order. */
async function candidates(folder: string, scripts: string[], ...options: string[]): Promise<Cli[]> {
  const all: Cli[] = [];
  for (const script of scripts) {
    const one = candidate(folder, script, ...options);
    await (all.length === 0 ? untilElected(one) : untilWaiting(one));
    all.push(one);
  }
  await untilTerms(folder, 1);
  return all;
}

interface Term {
  readonly pid: number;
  readonly token: bigint;
}

/** The terms that the commands have recorded, each at its beginning. */
function termsOf(folder: string): Term[] {
  return linesOf(folder, "terms").map((line) => {
    const [pid, token] = line.split(" ");
    return { pid: Number(pid), token: BigInt(token!) };
  });
}

const untilTerms = (folder: string, count: number): Promise<Term[]> =>
  until(`the command runs for the ${count}. time`, () => {
    const terms = termsOf(folder);
    const { token } = terms[count - 1] ?? {};
    return token !== undefined && linesOf(folder, "beats").includes(String(token)) && terms;
  });

/** Checks the commands' records: terms in order, each with a higher token, none after the next began. */
function expectOneAfterAnother(folder: string): void {
  const tokens = linesOf(folder, "beats").map(BigInt);
  expect(tokens.every((token, i) => i === 0 || token >= tokens[i - 1]!)).toBe(true);
  expect([...new Set(tokens)]).toEqual(termsOf(folder).map(({ token }) => token));
}

interface Shown {
  holders: { holder: string }[];
  waiters: { holder: string }[];
}

async function shown(folder: string): Promise<Shown> {
  return JSON.parse((await holdfast(folder, ["inspect", "job", "--json"])).stdout);
}

/** The process in a label such as `host:4711 (note)`. */
const pidOf = ({ holder }: { holder: string }): number => Number(/:(\d+)/.exec(holder)![1]);

const release = (folder: string): ReturnType<typeof holdfast> =>
  holdfast(folder, ["release", "job", "--force", "--why", "a test"]);

describe("holdfast elect", () => {
  it("runs the command as leader while others stand by, and says who leads", async () => {
    const folder = makeFolder();
    const [leader, second, third] = await candidates(folder, [OBEYS, OBEYS, OBEYS]);
    const { holders, waiters } = await shown(folder);
    expect(holders.map(pidOf)).toEqual([leader!.pid]);
    expect(waiters.map(pidOf)).toEqual([second!.pid, third!.pid]);
    const [term] = termsOf(folder);
    expect(leader!.stderr).toBe(`holdfast: elected for "job", with token ${term!.token}\n`);
    expect(second!.stderr).toMatch(/^holdfast: waiting: "job" is held by \S+, for .*\)\n$/);
    expect(second!.stderr).toContain(`:${leader!.pid}, for`);
    expect(third!.stderr).toContain("; 1 ahead of us\n");
    expect(termsOf(folder).length).toBe(1);
  });

  it("gives the command the same environment as run does", async () => {
    const print = "env | grep ^HOLDFAST_ | grep -v STORE | sort | sed 's/=[0-9]*$/=number/'";
    const args = ["elect", "job", "--note", "mine", "--quiet", "--", "sh", "-c", print];
    const { code, stdout, stderr } = await holdfast(makeFolder(), args);
    expect(stdout).toMatch(
      /^HOLDFAST_FLOOR=number\nHOLDFAST_HOLDER=\S+:\d+ \(mine\)\nHOLDFAST_NAME=job\nHOLDFAST_TOKEN=number\n$/,
    );
    expect(stderr).toBe("");
    expect(code).toBe(0);
  });

  it("exits with the command's code when the command ends by itself, and the next leads at once", async () => {
    const folder = makeFolder();
    const [leader, next] = await candidates(folder, [`${UNTIL_END}; exit 41`, OBEYS], "--verbose");
    writeFileSync(join(folder, "end"), "");
    const ended = await leader!.ended;
    expect(ended.code).toBe(41);
    expect(ended.stderr).toContain('released "job"');
    await untilElected(next!);
    await untilTerms(folder, 2);
    expectOneAfterAnother(folder);
  });

  it("refuses a command that can't be run", async () => {
    const folder = makeFolder();
    expect((await holdfast(folder, ["elect", "job", "--", "no-such-command"])).code).toBe(127);
    const env = { HOLDFAST_STORE: "sqlite:no/such/folder/x.db" };
    expect((await holdfast(folder, ["elect", "job", "--", "true"], env)).code).toBe(69);
  });

  it("gives up after --wait with 75", async () => {
    const folder = makeFolder();
    await candidates(folder, [OBEYS]);
    const late = await holdfast(folder, ["elect", "job", "--wait", "600ms", "--", "true"]);
    expect(late.stderr).toMatch(/\nholdfast: not elected: "job" is held by .* \(waited 600ms\)\n$/);
    expect(late.code).toBe(75);
    const quiet = await holdfast(folder, ["elect", "job", "--wait", "0", "--quiet", "--", "true"]);
    expect(quiet).toEqual({ code: 75, stdout: "", stderr: "" });
  });
});

describe("when the leader of an election", () => {
  it("is killed, its command dies with it, and the next leads, and the next after that", async (context) => {
    skipUnless(context, canDieWithParent, "needs setpriv --pdeathsig, of util-linux on Linux");
    const folder = makeFolder();
    const all = await candidates(folder, [IGNORES, IGNORES, IGNORES]);
    for (const [i, leader] of all.slice(0, 2).entries()) {
      const { pid } = termsOf(folder)[i]!;
      leader.signal("SIGKILL");
      const killedAtMs = performance.now();
      await untilTerms(folder, i + 2);
      expect(performance.now() - killedAtMs).toBeLessThan(TTL_MS + 2_000);
      expect(isAlive(pid)).toBe(false);
      await untilElected(all[i + 1]!);
    }
    expectOneAfterAnother(folder);
    all[2]!.signal("SIGKILL");
  });

  it("is frozen past its lease, the next leads; thawed, its command is killed at once, and it stands by", async () => {
    const folder = makeFolder();
    // Prints at once which signal it receives.
    const traps = ["TERM", "CONT"].map((one) => `trap 'echo ${one} >> log' ${one};`).join(" ");
    const awake = `${traps} ${BEGIN} while :; do :; done`;
    const [leader, next] = await candidates(folder, [awake, OBEYS]);
    const [{ pid }] = termsOf(folder) as [Term];
    // Like a machine that stands still: the command first, so that it writes nothing after the lease.
    process.kill(-pid, "SIGSTOP");
    leader!.signal("SIGSTOP");
    await untilElected(next!);
    await untilTerms(folder, 2);
    leader!.signal("SIGCONT");
    await until("it stands by", async () => {
      const { waiters } = await shown(folder);
      return waiters.map(pidOf).includes(leader!.pid);
    });
    expect(isAlive(pid)).toBe(false);
    expect(leader!.stderr).toContain("is lost: it could not be renewed in time; stopping");
    expect(leader!.stderr).toContain('campaigning for "job" again\n');
    // The command had no time left to end by itself, and was not woken before.
    expect(linesOf(folder, "log")).toEqual([]);

    next!.signal("SIGTERM");
    expect((await next!.ended).code).toBe(5);
    await untilElected(leader!, 2);
    await untilTerms(folder, 3);
    expectOneAfterAnother(folder);
    leader!.signal("SIGKILL");
  });
});

describe("when leadership is lost", () => {
  it("because renewals fail, a command that ignores TERM is killed before another leads", async () => {
    const folder = makeFolder();
    const [leader, next] = await candidates(folder, [IGNORES, IGNORES]);
    const [{ pid }] = termsOf(folder) as [Term];
    const unlock = await lockStore(folder);
    await until("it is killed", () => leader!.stderr.includes("killing it"));
    await until("it is gone", () => !isAlive(pid));
    // Either may be elected first; both are candidates again.
    await until("it campaigns", () => leader!.stderr.includes("campaigning"));
    unlock();
    await untilTerms(folder, 2);
    const now = await until("one waits", async () => {
      const all = await shown(folder);
      return all.waiters.length === 1 && all;
    });
    const both = [leader!.pid, next!.pid].sort();
    expect([...now.holders, ...now.waiters].map(pidOf).sort()).toEqual(both);
    expectOneAfterAnother(folder);
    for (const one of [leader!, next!]) one.signal("SIGKILL");
  });

  it("by a release by force, the command gets TERM, and the former leader waits behind the others", async () => {
    const folder = makeFolder();
    const [leader, second, third] = await candidates(folder, [OBEYS, OBEYS, OBEYS]);
    await release(folder);
    await until("it campaigns", () => leader!.stderr.includes("campaigning"));
    expect(leader!.stderr).toMatch(/it was released by force by .*: a test; stopping the command/);
    expect(linesOf(folder, "log")).toEqual(["TERM"]);
    const { holders, waiters } = await until("three are there", async () => {
      const all = await shown(folder);
      return all.waiters.length === 2 && all;
    });
    expect(holders.map(pidOf)).toEqual([second!.pid]);
    expect(waiters.map(pidOf)).toEqual([third!.pid, leader!.pid]);
  });

  it("by --max-hold, two candidates take turns", async () => {
    const folder = makeFolder();
    const [one, other] = await candidates(folder, [OBEYS, OBEYS], "--max-hold", "500ms");
    // The command's output may be seen before that of holdfast.
    const hasLedTwice = ({ stderr }: Cli): boolean => stderr.split("elected for").length > 2;
    await until("each has led twice", () => [one!, other!].every(hasLedTwice));
    expectOneAfterAnother(folder);
    for (const each of [one!, other!]) {
      expect(each.stderr).toContain("maxHold is over; stopping the command");
      expect(each.stderr).not.toContain("killing");
    }
  });

  it("the command's leftover processes are gone before its next term begins", async () => {
    const folder = makeFolder();
    const script = `trap 'exit 0' TERM; (${IGNORES}) & wait`;
    const [leader] = await candidates(folder, [script], "--max-hold", "300ms");
    await untilTerms(folder, 3);
    expectOneAfterAnother(folder);
    leader!.signal("SIGKILL");
  });

  it("unnoticed, and the command ends with 0, the exit code is 74, as with run", async () => {
    const folder = makeFolder();
    const args = ["elect", "job", "--ttl", "1h", "--", "sh", "-c", UNTIL_END];
    const leader = new Cli(folder, args);
    await untilTerms(folder, 1);
    await release(folder);
    writeFileSync(join(folder, "end"), "");
    const { code, stderr } = await leader.ended;
    expect(stderr).toContain("was lost before: another command may have run at the same time");
    expect(code).toBe(74);
  });
});

describe("a signal to holdfast elect", () => {
  it("ends a candidate that waits, and no ticket is left", async () => {
    const folder = makeFolder();
    const [, waiter] = await candidates(folder, [OBEYS, OBEYS]);
    waiter!.signal("SIGTERM");
    const { code, stderr } = await waiter!.ended;
    expect(stderr).toContain('SIGTERM: gave up waiting for "job"');
    expect(code).toBe(143);
    expect((await shown(folder)).waiters).toEqual([]);
  });

  it("goes to the leader's command; when that ends, elect ends, and the next leads", async () => {
    const folder = makeFolder();
    const [leader, next] = await candidates(folder, [OBEYS, OBEYS]);
    leader!.signal("SIGTERM");
    expect((await leader!.ended).code).toBe(5);
    await untilElected(next!);
    await untilTerms(folder, 2);
    expect(linesOf(folder, "log")).toEqual(["TERM"]);
    expectOneAfterAnother(folder);
  });

  it("that the command outlives is remembered: after a loss there is no new campaign", async () => {
    const folder = makeFolder();
    const [leader] = await candidates(folder, [IGNORES]);
    leader!.signal("SIGTERM");
    await release(folder);
    const { code, stderr } = await leader!.ended;
    expect(code).toBe(143);
    expect(stderr).not.toContain("campaigning");
    expect(termsOf(folder).length).toBe(1);
    expect((await shown(folder)).holders).toEqual([]);
  });

  it("SIGHUP concerns the command only: after a loss there is a new campaign", async () => {
    const folder = makeFolder();
    const [leader] = await candidates(folder, [beat("trap 'echo HUP >> log' HUP;")]);
    leader!.signal("SIGHUP");
    await until("the command has it", () => linesOf(folder, "log").includes("HUP"));
    await release(folder);
    await untilElected(leader!, 2);
    await untilTerms(folder, 2);
    expectOneAfterAnother(folder);
  });
});
