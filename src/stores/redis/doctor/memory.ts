import { type Finding, megabytes, percent } from "../../../core/doctor.js";
import { type Info, number } from "./facts.js";

const NEARLY_FULL = 0.9;

export function eviction(info: Info): Finding {
  const about = "eviction";
  const policy = info.get("maxmemory_policy");
  const most = number(info, "maxmemory");
  const advice = "Set maxmemory-policy to noeviction, or give locks a server of their own.";
  if (policy === undefined || Number.isNaN(most)) {
    return { about, level: "unknown", what: "INFO does not tell maxmemory and its policy" };
  }
  if (policy === "noeviction") return { about, level: "ok", what: "maxmemory-policy noeviction" };
  if (most === 0) {
    return {
      about,
      level: "note",
      what: `maxmemory-policy is ${policy}; it has no effect as long as maxmemory is not set`,
      advice,
    };
  }
  return {
    about,
    level: "danger",
    what: `maxmemory-policy is ${policy}: when memory is full, Redis deletes locks and token counters, and a name that is held is granted again`,
    advice,
  };
}

export function memory(info: Info): Finding {
  const about = "memory";
  const most = number(info, "maxmemory");
  const used = number(info, "used_memory") - (number(info, "mem_not_counted_for_evict") || 0);
  if (Number.isNaN(most) || Number.isNaN(used)) {
    return { about, level: "unknown", what: "INFO does not tell how much is used" };
  }
  if (most > 0) {
    const what = `${percent(used, most)} of maxmemory (${megabytes(most)}) is used`;
    if (used < NEARLY_FULL * most) return { about, level: "ok", what };
    return {
      about,
      level: "danger",
      what: `${what}: when it is full, grants and renewals are refused, and leases are lost`,
      advice: "Raise maxmemory, or give locks a server of their own.",
    };
  }
  const machine = number(info, "total_system_memory");
  const what = `${megabytes(used)} is used; no maxmemory`;
  // Some do not tell what the machine has.
  if (!(machine > 0 && used >= NEARLY_FULL * machine)) return { about, level: "ok", what };
  return {
    about,
    level: "danger",
    what: `${what}, and the machine has ${megabytes(machine)}: the kernel may kill the server`,
    advice: "Set maxmemory, or give the machine more memory.",
  };
}
