import type { Story } from "./stage.js";

export const midnight: Story = {
  name: "midnight",
  title: "The midnight cleanup that ran twice",
  tells:
    "Two machines have the same line in their crontab. The job takes a second; the clock of the second machine is two seconds late. A lock keeps the runs apart, and both run.",
  failure: "With a lock",
  fix: "With once per 24 h",
  lesson: "A lock prevents runs at the same time. A schedule needs once.",
  link: "schedules.md",

  async direct(stage) {
    const data = await stage.data("CREATE TABLE runs (host TEXT)");
    const a = stage.cast("A");
    await a.says();
    await a.ended();
    stage.note("two seconds later by the clock of B, it is midnight too");
    await stage.cast("B", 1).says();
    const runs = data.value("SELECT count(*) FROM runs");
    stage.ends(runs === 1, `cleanups this night: ${runs}`);
  },

  async act(actor) {
    const data = await actor.open();
    const locks = await actor.connect();
    const clean = async (): Promise<void> => {
      data.run("INSERT INTO runs VALUES (?)", actor.name);
      actor.say("cleans up, and is done");
    };
    if (!actor.fixed) return locks.withLock("cleanup", clean);
    const { ran } = await locks.once("cleanup", { every: "24h" }, clean);
    if (!ran) actor.say("does not run: A has done it");
  },
};
