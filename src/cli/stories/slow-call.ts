import { AcquireTimeoutError } from "../../core/errors.js";
import type { Actor, Data } from "./actor.js";
import type { Story } from "./stage.js";

export const slowCall: Story = {
  name: "slow-call",
  title: "A lock held across a slow call",
  tells:
    "A process locks an order, asks another service for a price, and stores it. The service is slow today. Everybody who needs the order waits, and gives up.",
  failure: "Lock, call, store",
  fix: "Call, lock, check, store",
  lesson:
    "Hold a lock for the write, not for the preparation. Fetch first; then lock, check that nothing has changed meanwhile, and store. If something has changed, fetch again.",
  link: "locks.md#waiting",

  async direct(stage) {
    const data = await stage.data(
      "CREATE TABLE orders (hats INTEGER, price INTEGER); INSERT INTO orders VALUES (2, NULL)",
    );
    const a = stage.cast("A");
    await a.says(stage.fixed ? 1 : 2);
    const outcome = await stage.cast("B", 1).says();
    stage.note("the service replies");
    if (stage.fixed) {
      await a.cue().says(2);
      stage.note("the service replies");
    }
    await a.cue().says();
    const isPriced = data.value("SELECT hats * 10 = price FROM orders") === 1;
    const hadToWait = outcome.includes("gives up");
    stage.ends(
      isPriced && !hadToWait,
      hadToWait
        ? "B failed because a service was slow"
        : `B did not have to wait, and the price is ${isPriced ? "right" : "wrong"}`,
    );
  },

  async act(actor) {
    const data = await actor.open();
    return actor.name === "A" ? setPrice(actor, data) : addHat(actor, data);
  },
};

const hatsOf = (data: Data): number => Number(data.value("SELECT hats FROM orders"));

async function setPrice(actor: Actor, data: Data): Promise<void> {
  const locks = await actor.connect();
  const fetchPrice = async (hats: number): Promise<number> => {
    await actor.sayAndWait(`asks the service for the price of ${hats} hats`);
    return hats * 10;
  };
  const store = (price: number): unknown => data.run("UPDATE orders SET price = ?", price);
  if (!actor.fixed) {
    await locks.withLock("order:1", async () => {
      actor.say("locks the order");
      store(await fetchPrice(hatsOf(data)));
      actor.say("stores the price");
    });
    return;
  }
  for (let isStored = false; !isStored; ) {
    const hats = hatsOf(data);
    const price = await fetchPrice(hats);
    await locks.withLock("order:1", () => {
      isStored = hatsOf(data) === hats;
      if (isStored) store(price);
      actor.say(
        `locks the order: ${isStored ? "as before, stores" : "it has changed, drops"} the price`,
      );
    });
  }
}

async function addHat(actor: Actor, data: Data): Promise<void> {
  const locks = await actor.connect({ wait: actor.fixed ? "30s" : "500ms" });
  try {
    await locks.withLock("order:1", () => {
      data.run("UPDATE orders SET hats = hats + 1");
      actor.say("locks the order, adds a hat");
    });
  } catch (error) {
    if (!(error instanceof AcquireTimeoutError)) throw error;
    actor.say("waits for the order, and gives up");
  }
}
