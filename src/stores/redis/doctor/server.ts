import type { Finding } from "../../../core/doctor.js";
import { type Info, versionOf } from "./facts.js";

export function version(info: Info): Finding {
  const text = info.get("redis_version") ?? "";
  const [major, minor] = versionOf(info);
  const about = "version";
  if (Number.isNaN(major) || Number.isNaN(minor)) {
    return { about, level: "unknown", what: "INFO names no redis_version; 6.2 or later is needed" };
  }
  if (major > 6 || (major === 6 && minor >= 2))
    return { about, level: "ok", what: `Redis ${text}` };
  return {
    about,
    level: "danger",
    what: `Redis ${text} is too old: leases need SET with PXAT, so nothing can be locked`,
    advice: "Upgrade to Redis 6.2 or later.",
  };
}

export function role(info: Info): Finding {
  const about = "role";
  const is = info.get("role");
  if (is === "master") return { about, level: "ok", what: "a primary" };
  if (is !== "slave") return { about, level: "unknown", what: "INFO does not tell" };
  return {
    about,
    level: "danger",
    what:
      info.get("slave_read_only") === "0"
        ? "a replica that takes writes: what is granted here, its primary knows nothing of and grants again"
        : "a replica: it refuses every claim, renewal and release",
    advice: "Name the primary in the URL, or its sentinels with ?sentinel=NAME.",
  };
}
