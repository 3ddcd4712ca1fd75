import { type Finding, isLoopback, reasonOf } from "../../../core/doctor.js";
import type { StoreUrl } from "../../../core/url.js";
import { ask, open } from "./ask.js";
import { type Facts, type Info, versionOf } from "./facts.js";

/** Who can reach it without a password, and who can listen. */
export async function accessOf(url: StoreUrl, { info, config }: Facts): Promise<Finding[]> {
  const about = "access";
  const local = url.hosts.every(({ host }) => isLoopback(host));
  const findings: Finding[] = [];
  const open = await letsAnyoneIn(url);
  const advice = "Set a password or ACL users, and let only the machines that need it connect.";
  const everybody = "anybody who reaches the server can take, free and delete locks";
  if (open === false) {
    findings.push({ about, level: "ok", what: "nobody gets in without a password" });
  } else if (open !== true) {
    const what = `whether one gets in without a password (${open})`;
    findings.push({ about, level: "unknown", what });
  } else if (!local) {
    const what = `no password is needed: ${everybody}`;
    findings.push({ about, level: "danger", what, advice });
  } else if (typeof config === "string") {
    const what = `no password is needed from this machine; whether it is from others (${config})`;
    findings.push({ about, level: "unknown", what, advice });
  } else {
    const shut = isShutToOthers(info, config);
    findings.push(
      shut
        ? { about, level: "ok", what: "no password is needed, but only this machine can connect" }
        : {
            about,
            level: "danger",
            what: `no password is needed, and others than this machine can connect (bind ${config.get("bind") || "*"}): ${everybody}`,
            advice,
          },
    );
  }
  if (!local && url.scheme === "redis") {
    findings.push({
      about: "transport",
      level: "note",
      what: "the connection is not encrypted: anybody on the network path can read passwords, and the grantIds that prove ownership of leases",
      advice: "Use rediss: unless the network is your own.",
    });
  }
  return findings;
}

/** Before version 7, protected mode counted only where no address was named. */
function isShutToOthers(info: Info | string, config: Info): boolean {
  const addresses = (config.get("bind") ?? "").split(" ").filter((one) => one !== "");
  if (addresses.length > 0 && addresses.every((one) => isLoopback(one.replace(/^-/, ""))))
    return true;
  const [major] = typeof info === "string" ? [Number.NaN] : versionOf(info);
  return config.get("protected-mode") === "yes" && (major >= 7 || addresses.length === 0);
}

/** A text: it can't be told, and why. */
async function letsAnyoneIn(url: StoreUrl): Promise<boolean | string> {
  if (url.user === "" && url.password === "") return true;
  try {
    const nobody = await open({ ...url, user: "", password: "" });
    try {
      const [server] = await nobody.servers();
      const answer = await ask(server!, "PING");
      return !("refused" in answer && /NOAUTH/.test(answer.refused));
    } finally {
      await nobody.close().catch(() => {});
    }
  } catch (error) {
    return /NOAUTH/.test(reasonOf(error)) ? false : reasonOf(error);
  }
}
