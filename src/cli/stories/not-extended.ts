import { LeaseLostError } from "../../core/errors.js";
import type { Story } from "./stage.js";

export const notExtended: Story = {
  name: "not-extended",
  title: "The lease that was not extended",
  tells:
    "A batch job takes a lease and begins. Its lease ends in the middle, because nothing renews it or the store can't be reached. Another instance takes over. The first job never looks at its lease, and goes on.",
  failure: "The job does not look at its lease",
  fix: "The job checks its lease before each item",
  lesson:
    "Renewal can fail. Work must stop when lease.signal aborts, and check with assertHeld before an effect that can't be undone.",
  link: "leases.md#when-it-is-lost",

  async direct(stage) {
    const data = await stage.data(
      "CREATE TABLE items (id INTEGER, times INTEGER); INSERT INTO items VALUES (1, 0), (2, 0), (3, 0), (4, 0)",
    );
    const a = stage.cast("A");
    await a.says();
    const b = stage.cast("B", 1);
    await b.says();
    await b.cue().says();
    await a.cue().says();
    const twice = data.value("SELECT count(*) FROM items WHERE times > 1");
    stage.ends(twice === 0, `items that were done twice: ${twice} of 4`);
  },

  async act(actor) {
    const data = await actor.open();
    const locks = await actor.connect({ ttl: "700ms" });
    // Stands for renewals that do not reach the store.
    const lease = await locks.acquire("batch", { renew: false });
    const doItem = (id: number): number =>
      data.run("UPDATE items SET times = times + 1 WHERE id = ?", id);
    if (actor.name === "A") {
      for (const id of [1, 2]) doItem(id);
      await actor.sayAndWait("begins: items 1 and 2 are done");
    } else await actor.sayAndWait("takes over: the lease of A is over");
    try {
      for (const id of [3, 4]) {
        if (actor.fixed && actor.name === "A") lease.assertHeld();
        doItem(id);
      }
      actor.say("does items 3 and 4");
    } catch (error) {
      if (!(error instanceof LeaseLostError)) throw error;
      actor.say("finds its lease lost, and stops");
    }
  },
};
