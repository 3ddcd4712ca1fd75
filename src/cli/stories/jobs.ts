import { idempotent } from "../../lockfree/index.js";
import type { Story } from "./stage.js";

/** The event and the kind of job: another job of the same event has another key. */
const KEY = "job:42:mail";

export const jobs: Story = {
  name: "jobs",
  title: "A job that is delivered twice",
  tells:
    "An event starts a job that sends a mail. The queue delivers events at least once. A lock job:{event}:{type} keeps two workers apart, but the second delivery comes when the first worker is done and has released the lock.",
  failure: "A lock alone",
  fix: "idempotent: the lock, and a result that is kept under the same key",
  lesson:
    "The lock keeps two workers apart, and the kept result serves every later delivery. After a crash in between the work is done again: the record and the effect must be one transaction, or the receiver must take the key too.",
  link: "idempotency.md#jobs",

  async direct(stage) {
    const data = await stage.data("CREATE TABLE mails (event INTEGER)");
    const a = stage.cast("A");
    const b = stage.cast("B", 1);
    await a.says();
    await b.says();
    await a.cue().says();
    await a.ended();
    await b.cue().says();
    const mails = data.value("SELECT count(*) FROM mails");
    stage.ends(mails === 1, `mails for event 42: ${mails}`);
  },

  async act(actor) {
    const data = await actor.open();
    const locks = await actor.connect();
    await actor.sayAndWait("receives event 42");
    let isNew = false;
    const send = (): void => {
      isNew = true;
      data.run("INSERT INTO mails VALUES (42)");
      actor.say(`holds ${KEY}: sends a mail`);
    };
    if (actor.fixed) await idempotent(locks, KEY, { keep: "24h" }, send);
    else await locks.withLock(KEY, send);
    if (!isNew) actor.say(`finds ${KEY} done`);
  },
};
