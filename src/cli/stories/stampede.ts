import type { Story } from "./stage.js";

export const stampede: Story = {
  name: "stampede",
  title: "The cache stampede",
  tells:
    "A page is cached for a minute, and takes five seconds to make. In the moment in which it expires, every process finds the cache empty, and all of them make the page.",
  failure: "Look, make, store",
  fix: "Look, lock, look again",
  lesson:
    "An efficiency lock, which may fail open: without the store, the page is made twice. Look again after the wait.",
  link: "intent.md#onunavailable-run",

  async direct(stage) {
    const data = await stage.data("CREATE TABLE cache (page TEXT, made INTEGER)");
    const workers = ["A", "B", "C"].map((name, i) => stage.cast(name, i, 3));
    for (const worker of workers) await worker.says();
    const [a, ...others] = workers;
    await a!.cue().says();
    for (const other of others) other.cue();
    if (stage.fixed) await stage.waiters("page", 2);
    await a!.cue().says();
    for (const other of others) {
      // In the failure, it makes the page too.
      if (!stage.fixed) await other.cue().says();
      await other.says();
    }
    const made = data.value("SELECT count(*) FROM cache");
    stage.ends(made === 1, `times that the page was made: ${made}`);
  },

  async act(actor) {
    const data = await actor.open();
    const isCached = (): boolean => data.value("SELECT page FROM cache") !== null;
    const make = async (): Promise<void> => {
      await actor.sayAndWait("makes the page");
      data.run("INSERT INTO cache VALUES ('page', 1)");
      actor.say("stores the page");
    };
    if (!isCached()) await actor.sayAndWait("finds no page");
    if (!actor.fixed) return make();
    const locks = await actor.connect({ onUnavailable: "run" });
    await locks.withLock("page", async () => (isCached() ? actor.say("finds the page") : make()));
  },
};
