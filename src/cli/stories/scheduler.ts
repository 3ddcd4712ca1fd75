import type { Actor } from "./actor.js";
import type { Story } from "./stage.js";

export const scheduler: Story = {
  name: "scheduler",
  title: "A leader for the scheduler",
  tells:
    "Several instances run, and one of them must start the jobs. The configuration names it. That machine dies at night, and no job starts until somebody reads the mail.",
  failure: "The leader is in the configuration",
  fix: "The leader is elected",
  lesson:
    "An election is a lock that candidates wait for. After a crash nobody leads for one ttl at most, or somewhat longer on ZooKeeper.",
  link: "elections.md",

  async direct(stage) {
    const data = await stage.data("CREATE TABLE ticks (host TEXT)");
    const a = stage.cast("A");
    await a.says();
    const b = stage.cast("B", 1);
    await b.says();
    await a.kill();
    await b.cue().says();
    const ticks = data.value("SELECT count(*) FROM ticks");
    stage.ends(ticks === 2, `jobs started: ${ticks} of 2`);
  },

  async act(actor) {
    const data = await actor.open();
    const start = async (actor: Actor): Promise<void> => {
      data.run("INSERT INTO ticks VALUES (?)", actor.name);
      await actor.sayAndWait("leads: starts a job");
    };
    if (!actor.fixed) {
      if (actor.name === "A") return start(actor);
      await actor.sayAndWait("is not the leader");
      return actor.say("is not the leader");
    }
    const locks = await actor.connect({ ttl: "1s" });
    if (actor.name === "B") await actor.sayAndWait("stands by");
    await locks.election("scheduler").runAsLeader(() => start(actor));
  },
};
