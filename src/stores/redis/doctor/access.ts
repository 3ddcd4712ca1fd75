import { reasonOf } from "../../../core/cause.js";
import { danger, type Finding, ok, unknown } from "../../../doctor/finding.js";
import { areLocal, isLoopback, judgeEncryption } from "../../../doctor/measures.js";
import type { StoreUrl } from "../../url.js";
import { type Target, targetOf } from "../target.js";
import { openConnection, sendCommand } from "./commands.js";
import { type Facts, type Info, versionOf } from "./facts.js";

const ADVICE = "Set a password or ACL users, and let only the machines that need it connect.";
const ANYONE = "anyone who reaches the server can take, free and delete locks";

/** Checks whether anybody can use the server without a password, or read the connection. */
export async function checkAccess(
  url: StoreUrl,
  facts: Facts,
  target: Target = targetOf(url),
): Promise<Finding[]> {
  const local = areLocal(url.hosts);
  const open = await allowsAnonymous(url, target);
  const access =
    open === false
      ? ok("access", "the server lets nobody in without a password")
      : open !== true
        ? unknown("access", `whether the server needs a password (${open})`)
        : judgeOpenServer(facts, local);
  const advice = `Use ${url.scheme === "redis" ? "rediss:" : "?tls"} unless the network is your own.`;
  return [access, ...judgeEncryption(url.hosts, target.tls !== null, advice)];
}

function judgeOpenServer({ info, config }: Facts, local: boolean): Finding {
  if (!local) return danger("access", `no password is needed: ${ANYONE}`, ADVICE);
  if (typeof config === "string") {
    const what = `no password is needed from this machine; whether it is from others (${config})`;
    return unknown("access", what, ADVICE);
  }
  if (isClosedToOthers(info, config)) {
    return ok("access", "no password is needed, but only this machine can connect");
  }
  const bind = config.get("bind") || "*";
  return danger(
    "access",
    `no password is needed, and other machines can connect (bind ${bind}): ${ANYONE}`,
    ADVICE,
  );
}

/** Before version 7, protected mode had an effect only without a bind address. */
function isClosedToOthers(info: Info | string, config: Info): boolean {
  const addresses = (config.get("bind") ?? "").split(" ").filter((one) => one !== "");
  const local = addresses.every((one) => isLoopback(one.replace(/^-/, "")));
  if (addresses.length > 0 && local) return true;
  const [major] = typeof info === "string" ? [Number.NaN] : versionOf(info);
  return config.get("protected-mode") === "yes" && (major >= 7 || addresses.length === 0);
}

/** A text says why it is unknown. */
async function allowsAnonymous(url: StoreUrl, target: Target): Promise<boolean | string> {
  if (url.user === "" && url.password === "") return true;
  try {
    const stranger = await openConnection(url, { ...target, user: "", password: "" });
    try {
      const [server] = await stranger.servers();
      const sent = await sendCommand(server!, "PING");
      return !("refused" in sent && /NOAUTH/.test(sent.refused));
    } finally {
      await stranger.close().catch(() => {});
    }
  } catch (error) {
    return /NOAUTH/.test(reasonOf(error)) ? false : reasonOf(error);
  }
}
