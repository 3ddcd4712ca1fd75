import { subscribe } from "node:diagnostics_channel";
import type { Player, Stage, Story } from "./stage.js";

export const herd: Story = {
  name: "herd",
  title: "The herd on release",
  tells:
    "Waiters watch the lock. Each release wakes all of them, and all of them ask at once: one in turn succeeds. With a thousand waiters, the store does little else.",
  failure: "Every waiter is woken",
  fix: "The next waiter is handed the name",
  lesson:
    "The step that frees a name makes the first waiter its holder, so a handover costs the same with any number of waiters.",
  link: "locks.md#waiting",

  async direct(stage) {
    const names = ["A", "B", "C"];
    await stage.data("CREATE TABLE locks (name TEXT PRIMARY KEY)");
    const tries = stage.fixed ? await queue(stage, names) : await wakeAll(stage, names);
    stage.ends(tries === names.length, `requests: ${tries} for ${names.length} grants`);
  },

  async act(actor) {
    if (actor.fixed) {
      // So long that no lease or ticket is renewed by its time.
      const locks = await actor.connect({ ttl: "5m" });
      let requests = 0;
      subscribe("holdfast:request", (event) => {
        if (["claim", "renew"].includes((event as { command: string }).command)) requests++;
      });
      await locks.withLock("job", () => actor.sayAndWait("holds it"));
      actor.say(`releases it; requests: ${requests}`);
      return;
    }
    const data = await actor.open();
    for (;;) {
      await actor.cue();
      if (data.run("INSERT OR IGNORE INTO locks VALUES ('job')") === 1) break;
      actor.say("asks in vain");
    }
    await actor.sayAndWait("asks; holds it");
    data.run("DELETE FROM locks");
    actor.say("releases it");
  },
};

/** Returns the number of requests. */
async function wakeAll(stage: Stage, names: readonly string[]): Promise<number> {
  let waiting = names.map((name, i) => stage.cast(name, i, names.length));
  let tries = 0;
  while (waiting.length > 0) {
    stage.note(`the lock is free; waiters that are woken: ${waiting.length}`);
    let holder: Player | null = null;
    for (const one of waiting) {
      tries++;
      if ((await one.cue().says()).endsWith("holds it")) holder = one;
    }
    waiting = waiting.filter((one) => one !== holder);
    await holder!.cue().says();
  }
  return tries;
}

/** Returns the number of requests, as the waiters counted them. */
async function queue(stage: Stage, names: readonly string[]): Promise<number> {
  const players: Player[] = [];
  for (const [i, name] of names.entries()) {
    players.push(stage.cast(name, i, names.length));
    if (i === 0) await players[0]!.says();
    else await stage.waiters("job", i);
  }
  let tries = 0;
  for (const [i, player] of players.entries()) {
    tries += Number(/\d+$/.exec(await player.cue().says())![0]);
    await player.ended();
    await players[i + 1]?.says();
  }
  return tries;
}
