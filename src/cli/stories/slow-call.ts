import { AcquireTimeoutError } from "../../core/errors.js";
import type { Story } from "./stage.js";

export const slowCall: Story = {
  name: "slow-call",
  title: "A lock held across a slow call",
  tells:
    "A process locks an order, asks another service for a price, and stores it. The service is slow today. Everybody who needs the order waits, and gives up.",
  failure: "Lock, call, store",
  fix: "Call, lock, store",
  lesson:
    "Hold a lock for the write, not for the preparation. Fetch first; then lock, check, store.",
  link: "locks.md#waiting",

  async direct(stage) {
    const a = stage.cast("A");
    await a.says(stage.fixed ? 1 : 2);
    const outcome = await stage.cast("B", 1).says();
    stage.note("the service replies");
    await a.cue().says(stage.fixed ? 2 : 1);
    const isGood = !outcome.includes("gives up");
    stage.ends(isGood, isGood ? "B did not have to wait" : "B failed because a service was slow");
  },

  async act(actor) {
    const isImpatient = actor.name === "B" && !actor.fixed;
    const locks = await actor.connect({ wait: isImpatient ? "500ms" : "30s" });
    const callService = (): Promise<void> => actor.sayAndWait("calls the service");
    if (actor.name === "A" && actor.fixed) await callService();
    try {
      await locks.withLock("order:1", async () => {
        const isPricer = actor.name === "A";
        if (!isPricer) return actor.say("locks the order, ships it");
        actor.say("locks the order");
        if (!actor.fixed) await callService();
        actor.say("stores the price");
      });
    } catch (error) {
      if (!(error instanceof AcquireTimeoutError)) throw error;
      actor.say("waits for the order, and gives up");
    }
  },
};
