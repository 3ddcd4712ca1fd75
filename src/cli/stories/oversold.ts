import { StaleTokenError } from "../../core/errors.js";
import { sqliteFence } from "../../fence/sqlite.js";
import { playPause, type Story } from "./stage.js";

export const oversold: Story = {
  name: "oversold",
  title: "The lock that was none",
  tells:
    "A shop locks an item, reads the stock and writes it back. A process is paused between the two, by its garbage collector or its host, for longer than its lease. Another process sells the last item meanwhile. The first one wakes, and sells it too.",
  failure: "With a lock alone",
  fix: "With a fence: the stock refuses a token lower than the highest it has seen",
  lesson: "The lock is not enough: the resource must check the token.",
  link: "fences.md",

  async direct(stage) {
    const data = await stage.data(
      "CREATE TABLE shop (hats INTEGER, sold INTEGER); INSERT INTO shop VALUES (1, 0)",
    );
    await playPause(stage);
    const sold = data.value("SELECT sold FROM shop");
    stage.ends(sold === 1, `sold: ${sold}, in stock: 1`);
  },

  async act(actor) {
    const data = await actor.open();
    const fence = actor.fixed ? sqliteFence(data.db) : null;
    const locks = await actor.connect({ ttl: "700ms" });
    const lease = await locks.acquire("stock:hat");
    await fence?.enter(undefined, "stock:hat", lease);
    const hats = Number(data.value("SELECT hats FROM shop"));
    await actor.sayAndWait(`holds the lock, reads: ${hats} hat`);
    try {
      data.transaction(() => {
        fence?.guardSync(data.db, "stock:hat", lease);
        data.run("UPDATE shop SET hats = ?, sold = sold + 1", hats - 1);
      });
      actor.say("sells a hat");
    } catch (error) {
      if (!(error instanceof StaleTokenError)) throw error;
      actor.say("is refused: its token is too low");
    }
  },
};
