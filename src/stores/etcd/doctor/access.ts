import { reasonOf } from "../../../core/cause.js";
import { danger, type Finding, ok, unknown } from "../../../doctor/finding.js";
import { areLocal, isLoopback, judgeEncryption } from "../../../doctor/measures.js";
import type { StoreUrl } from "../../url.js";
import { OURS, openEtcdClientOf } from "../open.js";
import { EtcdError } from "../rpc/errors.js";
import type { ClusterMember } from "../rpc/messages.js";

const REPLY_MS = 2_000;

/** Checks whether anybody can use the cluster without logging in, or read the connection. */
export async function checkAccess(
  url: StoreUrl,
  members: readonly ClusterMember[] | string,
): Promise<Finding[]> {
  const local = areLocal(url.hosts);
  const open = await allowsAnonymous(url);
  const access =
    typeof open === "string"
      ? unknown("access", `whether authentication is on (${open})`)
      : open
        ? judgeOpenCluster(url, local, members)
        : ok("access", "the cluster lets nobody in without a user or a certificate");
  const advice = "Use tls=1 unless the network is your own.";
  return [access, ...judgeEncryption(url.hosts, url.options.has("tls"), advice)];
}

function judgeOpenCluster(
  { user }: StoreUrl,
  local: boolean,
  members: readonly ClusterMember[] | string,
): Finding {
  const advertised = typeof members === "string" ? [] : members.flatMap((one) => one.clientUrls);
  const beyond = advertised.filter((text) => !isLoopback(hostOf(text).replace(/:\d+\/?$/, "")));
  if (local && beyond.length === 0) {
    return ok("access", "authentication is off, but it advertises addresses of this machine alone");
  }
  const where = local ? ` (at ${beyond.map(hostOf).join(", ")})` : "";
  const unchecked = user === "" ? "" : `; the user in the URL, "${user}", is not checked at all`;
  return danger(
    "access",
    `authentication is off: anyone who reaches it${where} can take, free and delete locks${unchecked}`,
    "Make users and roles and run etcdctl auth enable, or require certificates of clients.",
  );
}

/** A text says why it is unknown. */
async function allowsAnonymous(url: StoreUrl): Promise<boolean | string> {
  const identity = ["cert", "key"];
  const options = new Map([...url.options].filter(([name]) => !identity.includes(name)));
  const stranger = await openEtcdClientOf({ ...url, user: "", password: "", options });
  try {
    await stranger.range({ ...OURS, countOnly: true }, { timeoutMs: REPLY_MS });
    return true;
  } catch (error) {
    if (!(error instanceof EtcdError)) throw error;
    const isRefused = /user name is empty|permission denied/.test(error.message);
    // The client with our certificate could connect, the one without it can't.
    if (isRefused || (url.options.has("cert") && error.executed === "no")) return false;
    return reasonOf(error);
  } finally {
    await stranger.close();
  }
}

/** The host and port of a URL that a member advertises. */
export const hostOf = (clientUrl: string): string => clientUrl.replace(/^\w+:\/\//, "");
