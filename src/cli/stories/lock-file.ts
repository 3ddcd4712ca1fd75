import { rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Actor } from "./actor.js";
import type { Story } from "./stage.js";

/** A lock file that was not touched for so long counts as left behind. */
const STALE_MS = 30_000;
/** The clock of B is wrong by this. */
const AHEAD_MS = 60_000;

export const lockFile: Story = {
  name: "lock-file",
  title: "The lock file on a network disk",
  tells:
    "Machines share a disk, and the one that creates report.lock holds the lock. Crashes leave the file behind, so a file older than 30 s counts as stale. But its time is that of the file server, and the clock of machine B is a minute ahead: B removes the file of a living holder.",
  failure: "A file, and the clocks of two machines",
  fix: "A lease: its store alone decides when it ends",
  lesson:
    "The age of a lock must be measured by one clock, that of the store. On many network disks even the exclusive creation of a file is not atomic. Several machines need a store with a server: the file of SQLite, which this story uses, serves the processes of one machine.",
  link: "primitives.md#what-the-stores-offer",

  async direct(stage) {
    const a = stage.cast("A");
    await a.says();
    const isHeldTwice = (await stage.cast("B", 1).says()).endsWith("holds it");
    stage.ends(!isHeldTwice, isHeldTwice ? "A and B both hold the lock" : "A alone holds the lock");
  },

  async act(actor) {
    if (actor.fixed) {
      const lease = await (await actor.connect()).tryAcquire("report");
      actor.say(lease === null ? "learns that A has it" : "holds it");
    } else if (create(actor)) actor.say("creates report.lock: holds it");
    else if (isStale(actor)) {
      rmSync(fileOf(actor));
      create(actor);
      actor.say("removes a stale file: holds it");
    } else actor.say("waits");
    if (actor.name === "A") await actor.cue();
  },
};

const fileOf = ({ folder }: Actor): string => join(folder, "report.lock");

function create(actor: Actor): boolean {
  try {
    writeFileSync(fileOf(actor), actor.name, { flag: "wx" });
    return true;
  } catch {
    return false;
  }
}

function isStale(actor: Actor): boolean {
  const nowMs = Date.now() + (actor.name === "B" ? AHEAD_MS : 0);
  return nowMs - statSync(fileOf(actor)).mtimeMs > STALE_MS;
}
