import type { Data } from "./actor.js";
import type { Story } from "./stage.js";

export const migration: Story = {
  name: "migration",
  title: "A database migration in a maintenance window",
  tells:
    "Each instance migrates the database when it starts. Two start at the same time, both find version 1, and both run the migration. The second fails in the middle.",
  failure: "Look at the version, then migrate",
  fix: "Under a lock, look again, then migrate; maxHold is the maintenance window",
  lesson: "Check again after the wait: the holder before you has done the work.",
  link: "leases.md#maxhold",

  async direct(stage) {
    const data = await stage.data(
      "CREATE TABLE users (name TEXT); CREATE TABLE version (number INTEGER); INSERT INTO version VALUES (1)",
    );
    const [a, b] = [stage.cast("A"), stage.cast("B", 1)];
    await a.says();
    await b.says();
    if (stage.fixed) {
      await a.cue().says();
      b.cue();
      await stage.waiters("migration", 1);
      await a.cue().says();
    } else {
      await a.cue().says();
      b.cue();
    }
    const outcome = await b.says();
    const version = data.value("SELECT number FROM version");
    stage.ends(!outcome.startsWith("fails"), `version ${version}; B ${outcome}`);
  },

  async act(actor) {
    const data = await actor.open();
    await actor.sayAndWait(`starts, finds version ${data.value("SELECT number FROM version")}`);
    if (!actor.fixed) return actor.say(migrate(data));
    const locks = await actor.connect();
    await locks.withLock("migration", { maxHold: "30m" }, async () => {
      const version = data.value("SELECT number FROM version");
      if (version === 2) return actor.say("finds version 2: nothing to do");
      await actor.sayAndWait("holds the lock");
      actor.say(migrate(data));
    });
  },
};

function migrate(data: Data): string {
  try {
    data.db.exec("ALTER TABLE users ADD COLUMN mail TEXT");
    data.run("UPDATE version SET number = 2");
    return "migrates to version 2";
  } catch (error) {
    return `fails: ${(error as Error).message}`;
  }
}
