import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { connect, type Locks } from "../../src/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { Target } from "../../src/verify/runner/target.js";
import { LAB_TARGETS, type LabName } from "../../src/verify/targets/index.js";
import { describeWith, skipUnless } from "../support/needs.js";
import { Cli, CTRL_C, canMakeTerminals, holdfast, makeFolder, Terminal, until } from "./helpers.js";

/** One lab for each kind of store that a URL can name. */
const LABS: readonly LabName[] = [
  "sqlite",
  "redis",
  "redis-cluster",
  "redlock",
  "postgres",
  "postgres-session",
  "pgbouncer",
  "etcd",
  "zookeeper",
];

describe.each(LABS)("on the store of the lab %s", (name) => {
  describeWith(LAB_TARGETS[name].needs, "the command line", () => {
    let lab: Lab;
    let target: Target;
    let locks: Locks;

    beforeAll(async () => {
      lab = await Lab.open();
      target = await LAB_TARGETS[name].open(lab, false);
      locks = await connect(target.url, { holder: "me", ttl: "20s" });
    }, 120_000);
    afterAll(async () => {
      await locks?.close();
      await target?.[Symbol.asyncDispose]();
      await lab?.close();
    });

    it("shows who holds a name, who waits for it, and who gets it", async (context) => {
      skipUnless(context, canMakeTerminals, "needs script(1), of bsdutils");
      const { fair } = locks.traits;
      const folder = makeFolder();
      const env = { HOLDFAST_STORE: target.url };
      const run = (...args: string[]) => holdfast(folder, args, env);
      const first = await locks.acquire("order:1");
      const events = new Cli(folder, ["events", "--prefix", "order:"], env);
      const terminal = new Terminal("ls --watch", target.url);
      const prints = (text: string): Promise<true> =>
        until(`events prints ${text}`, () => events.stdout.includes(text));
      await prints(`held     "order:1" by me, exclusive, token ${first.token}, for `);
      await terminal.shows("order:1  exclusive  me ");

      const waiting = locks.acquire("order:1", { wait: "1m" });
      if (fair) await prints('waiters  "order:1": 1\n');
      const row = (text: string): string =>
        text.split("\n").find((line) => line.startsWith("order:1"))!;
      expect(row((await run("ls")).stdout)).toMatch(fair ? / 1$/ : / \?$/);
      await until("the terminal shows the waiters", () =>
        (fair ? /order:1 .* 1\b/ : /order:1 .* \?/).test(terminal.text),
      );
      const deadlocks = await run("deadlocks");
      expect(deadlocks.code).toBe(fair ? 0 : 69);
      expect(deadlocks.stdout + deadlocks.stderr).toMatch(
        fair ? /^No deadlock in namespace "default"\.$/m : /who waits/,
      );

      await first.release();
      const second = await waiting;
      await prints(`ended    "order:1" by me, exclusive, token ${first.token}, for `);
      await prints(`granted  "order:1" by me, exclusive, token ${second.token}, for `);
      terminal.type(CTRL_C);
      expect(await terminal.exited).toBe(0);
      events.signal("SIGINT");
      const { code, stderr } = await events.ended;
      // On a busy machine the store takes a moment to open.
      expect(stderr.replace(/^holdfast: connecting to .*\n/, "")).toBe("");
      expect(code).toBe(0);
      await second.release();
    });
  });
});
