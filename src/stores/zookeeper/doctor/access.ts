import { danger, type Finding, ok } from "../../../doctor/finding.js";
import { areLocal, judgeEncryption } from "../../../doctor/measures.js";
import type { StoreUrl } from "../../url.js";
import type { ZooKeeperClient } from "../client/client.js";
import type { Acl } from "../client/records.js";
import { isCode } from "../errors.js";
import type { Layout } from "../layout.js";

/** Checks whether anybody can change the locks, or read the connection. */
export async function checkAccess(
  client: ZooKeeperClient,
  { root, names, sessions, revoked }: Layout,
  url: StoreUrl,
): Promise<Finding[]> {
  const open: string[] = [];
  for (const path of [root, names, sessions, revoked]) {
    if ((await readAcl(client, path)).some(isOpen)) open.push(path);
  }
  const advice = "Use tls=1 unless the network is your own.";
  return [judgeOpen(open, url), ...judgeEncryption(url.hosts, url.options.has("tls"), advice)];
}

const isOpen = ({ scheme, permissions }: Acl): boolean =>
  scheme === "world" && permissions.some((one) => one !== "read");

async function readAcl(client: ZooKeeperClient, path: string): Promise<Acl[]> {
  try {
    return (await client.getAcl(path)).acl;
  } catch (error) {
    // Nobody has made it yet, or a stranger may not even read its rights.
    if (isCode(error, "NO_NODE", "NO_AUTH")) return [];
    throw error;
  }
}

function judgeOpen(open: readonly string[], url: StoreUrl): Finding {
  if (open.length === 0) return ok("access", "only users with rights can change the locks");
  if (areLocal(url.hosts)) {
    return ok("access", "the nodes are open to everybody, and the servers are on this machine");
  }
  const unused =
    url.user === "" ? "" : `; the user in the URL, "${url.user}", does not protect these nodes`;
  return danger(
    "access",
    `anyone who reaches the servers can take, free and delete locks: ${open.join(", ")} can be changed by everybody${unused}`,
    "Connect with a user and a password (user:password@) under a root that does not exist yet, or let only your own machines reach the servers.",
  );
}
