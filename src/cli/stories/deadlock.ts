import type { Deadlock } from "../../primitives/deadlocks.js";
import { type Story, until } from "./stage.js";

export const deadlock: Story = {
  name: "deadlock",
  title: "The deadlock loop",
  tells:
    "An order needs the stock and the payment. One process locks the stock first, another the payment. Each has what the other waits for.",
  failure: "One after the other, in any order",
  fix: "Both together: acquireAll takes names in one order",
  lesson: "Take several names in the same order everywhere, or let acquireAll do it.",
  link: "multi-locks.md",

  async direct(stage) {
    const [a, b] = [stage.cast("A"), stage.cast("B", 1)];
    await a.says();
    await b.says();
    if (stage.fixed) {
      await a.cue().says();
      b.cue();
      await stage.waiters("inventory:1", 1);
      await a.cue().says();
      await b.says();
      return stage.ends(true, "both orders are done");
    }
    await a.cue().says();
    await b.cue().says();
    const locks = await stage.locks();
    let found: readonly Deadlock[] = [];
    await until(async () => {
      found = await locks.deadlocks();
      return found.length > 0;
    });
    const circle = found[0]!.map((one) => `${one.holder} waits for ${one.blockedBy}`);
    stage.ends(false, `a deadlock: ${circle.sort().join(", ")}`);
  },

  async act(actor) {
    const locks = await actor.connect();
    const names = ["inventory:1", "payment:9"];
    if (actor.name === "B") names.reverse();
    if (actor.fixed) {
      await actor.sayAndWait(`needs ${names[0]}, ${names[1]}`);
      const all = await locks.acquireAll(names);
      if (actor.name === "A") await actor.sayAndWait("holds both");
      await all.release();
      return actor.say("is done, and releases both");
    }
    await locks.acquire(names[0]!);
    await actor.sayAndWait(`holds ${names[0]}`);
    actor.say(`waits for ${names[1]}`);
    await locks.acquire(names[1]!);
  },
};
