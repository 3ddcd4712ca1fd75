import type { Finding } from "../../../core/doctor.js";
import type { Info } from "./facts.js";

const LOSES =
  "locks are lost while their holders are at work, and granted again (tokens rise as long as the server's clock does: then a fence refuses the late holder)";

export function persistence(info: Info, config: Info | string): Finding {
  const about = "persistence";
  const advice =
    "Set appendonly yes and appendfsync always, and fence what must not be done twice.";
  const danger = (what: string): Finding => ({ about, level: "danger", what, advice });
  const appends = info.get("aof_enabled");
  if (appends === undefined) {
    return { about, level: "unknown", what: "INFO does not tell whether there is a log" };
  }
  const setting = (name: string): string | undefined =>
    typeof config === "string" ? undefined : config.get(name);
  if (appends !== "1") {
    const save = setting("save");
    if (save === "") return danger(`nothing is kept: with any restart all ${LOSES}`);
    const which = save === undefined ? "no append-only file" : `snapshots only (save ${save})`;
    return danger(`${which}: with a crash all later ${LOSES}`);
  }
  const [sync, pauses] = [setting("appendfsync"), setting("no-appendfsync-on-rewrite")];
  switch (sync) {
    case "everysec":
      return danger(`appendfsync everysec: with a crash the last second or two of ${LOSES}`);
    case "no":
      return danger(`appendfsync no: with a power cut the last half minute of ${LOSES}`);
    case "always":
      if (pauses !== "yes") {
        return { about, level: "ok", what: "appendfsync always: a grant is on the disk when told" };
      }
      return {
        ...danger(
          `no-appendfsync-on-rewrite yes: with a power cut while the log is rewritten ${LOSES}`,
        ),
        advice: "Set no-appendfsync-on-rewrite to no.",
      };
  }
  const why = typeof config === "string" ? config : "CONFIG GET does not tell";
  return {
    about,
    level: "unknown",
    what: `there is an append-only file; what a crash loses depends on appendfsync (${why})`,
    advice: "It must be always: with everysec, the last second or two of locks are lost.",
  };
}

/** By default a server that could not save refuses all writes. Where it can't be told, the trial tells. */
export function refusedWrites(info: Info, config: Info | string): Finding[] {
  const failed: string[] = [];
  if (info.get("aof_last_write_status") === "err") failed.push("the append-only file");
  const stops =
    typeof config !== "string" &&
    config.get("stop-writes-on-bgsave-error") === "yes" &&
    config.get("save") !== "";
  if (stops && info.get("rdb_last_bgsave_status") === "err") failed.push("the last snapshot");
  if (failed.length === 0) return [];
  return [
    {
      about: "disk",
      level: "danger",
      what: `${failed.join(" and ")} could not be written: Redis refuses grants and renewals, and leases are lost`,
      advice: "See the server's log: is the disk full, may it write in its folder?",
    },
  ];
}
