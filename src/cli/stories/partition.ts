import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { StaleTokenError } from "../../core/errors.js";
import { openFileFence } from "../../fence/file.js";
import { playPause, type Story } from "./stage.js";

const FILE = "partition-3.json";

export const partition: Story = {
  name: "partition",
  title: "The single writer of a partition",
  tells:
    "Each partition has one writer, which keeps the whole index in memory and saves it. The writer is paused, another one is made the writer and saves. The old writer wakes and saves its old index over the new one.",
  failure: "The writer is chosen by a lock",
  fix: "The writer is chosen by a lock, and its files have a fence",
  lesson: "A single writer is a promise of the storage, not of the writer.",
  link: "fences.md#files",

  async direct(stage) {
    writeFileSync(join(stage.folder, FILE), "0 records");
    await playPause(stage);
    const saved = readFileSync(join(stage.folder, FILE), "utf8");
    stage.ends(saved === "2 records", `B saved 2 records; the file has ${saved}`);
  },

  async act(actor) {
    const fence = actor.fixed ? await openFileFence(actor.folder) : null;
    const locks = await actor.connect({ ttl: "700ms" });
    const lease = await locks.acquire("partition-3");
    await fence?.enter(undefined, FILE, lease);
    const records = actor.name === "A" ? "1 record" : "2 records";
    await actor.sayAndWait(`is the writer, has ${records}`);
    try {
      if (fence === null) writeFileSync(join(actor.folder, FILE), records);
      else await fence.replace(FILE, lease, records);
      actor.say(`saves ${records}`);
    } catch (error) {
      if (!(error instanceof StaleTokenError)) throw error;
      actor.say("is refused: its token is too low");
    }
  },
};
