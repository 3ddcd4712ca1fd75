import type { Finding } from "../../../core/doctor.js";
import { type Info, number } from "./facts.js";

export function replication(info: Info, asked: number): Finding {
  const about = "replicas";
  const count = number(info, "connected_slaves");
  if (Number.isNaN(count)) return { about, level: "unknown", what: "INFO does not tell" };
  const replicas = [...info]
    .filter(([field]) => /^slave\d+$/.test(field))
    .map(([, text]) => new Map(text.split(",").map((pair) => pair.split("=") as [string, string])));
  const online = replicas.filter((one) => one.get("state") === "online");
  const behind = Math.max(
    ...online.map((one) => number(info, "master_repl_offset") - Number(one.get("offset"))),
    0,
  );
  const heard = Math.max(...online.map((one) => Number(one.get("lag"))), 0);
  const there = `${online.length} of ${count} online, up to ${behind} bytes behind, heard of ${heard} s ago`;
  if (asked > online.length) {
    return {
      about,
      level: "danger",
      what: `the URL says replicas=${asked}, but ${online.length} are online: no grant counts, and no lease can be renewed`,
      advice: "Start the replicas, or ask for fewer.",
    };
  }
  if (count === 0)
    return { about, level: "ok", what: "none: there is no failover to lose a grant" };
  if (asked >= count) {
    return {
      about,
      level: "note",
      what:
        `${there}; a grant counts when ${asked} have it in memory. It can still be granted twice: after a failover to one that ` +
        "was away then or whose clock is ahead, by an old primary until it is demoted, and after a loss of power",
      advice:
        "Fence what must not be done twice; set min-replicas-to-write, and keep the clocks of all nodes in step.",
    };
  }
  return {
    about,
    level: "danger",
    what:
      `${there}; ${asked === 0 ? "a grant does not wait for them" : `a grant waits for ${asked} of them`}: ` +
      "a failover to one that has not heard of it grants the name again",
    advice: `Add replicas=${count} to the URL, and fence what must not be done twice.`,
  };
}
