import {
  check,
  danger,
  type Finding,
  note,
  ok,
  SEE_OTHERS,
  type Trial,
} from "../../doctor/finding.js";
import type { StoreUrl } from "../url.js";
import type { ZooKeeperClient } from "./client/client.js";
import { isCode } from "./errors.js";
import { TIMEOUT_PER_TTL } from "./link.js";
import { openClientOf, openZooKeeperStore, storeOptions } from "./open.js";

/** For the default ttl of 30 s. */
const WANTED_MS = 30_000 * TIMEOUT_PER_TTL;

/** Reports what endangers locks on an ensemble of ZooKeeper. Needs no four-letter commands. */
export async function examineZooKeeper(url: StoreUrl, trial: Trial): Promise<readonly Finding[]> {
  const client = await openClientOf(url, WANTED_MS);
  try {
    const tried = await openZooKeeperStore(url).then(trial, (error: Error) =>
      danger("trial", `nothing can be locked: ${error.message}`, SEE_OTHERS),
    );
    return [
      checkServers(url),
      ...(await check("session", () => checkSession(client, url))),
      tried,
      ...(await check("access", () => checkAccess(client, url))),
    ];
  } finally {
    await client.close();
  }
}

function checkServers({ hosts }: StoreUrl): Finding {
  const { length: count } = hosts;
  if (count > 2) return ok("servers", `the URL names ${count} servers`);
  return note(
    "servers",
    count === 1 ? "the URL names one server" : "the URL names two servers",
    "While it can't be reached, nothing can be locked. Name all servers of an ensemble of three or five.",
  );
}

async function checkSession(client: ZooKeeperClient, url: StoreUrl): Promise<Finding[]> {
  const longestMs = client.sessionTimeoutMs;
  const shortest = await openClientOf(url, 1);
  const shortestMs = shortest.sessionTimeoutMs;
  await shortest.close();
  const findings = [
    longestMs < WANTED_MS
      ? note(
          "session",
          `sessions last ${longestMs} ms at most, so that leases get a ttl of ${Math.floor(longestMs / TIMEOUT_PER_TTL)} ms at most`,
          "For a longer ttl, raise maxSessionTimeout to 1.7 times the ttl on all servers.",
        )
      : ok("session", `sessions may last ${longestMs} ms, enough for a ttl of 30 s`),
  ];
  findings.push(
    note(
      "session",
      `sessions last ${shortestMs} ms at least: after a crash, a name is free after that time or 1.7 times the ttl, whichever is longer`,
      "minSessionTimeout must be two ticks (2 × tickTime) at least on all servers, as it is by default.",
    ),
  );
  return findings;
}

async function checkAccess(client: ZooKeeperClient, url: StoreUrl): Promise<Finding[]> {
  const findings: Finding[] = [];
  if (url.password !== "" && !url.options.has("tls")) {
    const what = "the password goes over the network in clear text";
    findings.push(note("access", what, "Use TLS: add tls=1 to the URL."));
  }
  try {
    const { acl } = await client.getAcl(storeOptions(url).root!);
    if (acl.some(({ scheme }) => scheme === "world")) {
      const what = "everybody who reaches the servers can change the locks: the root is open";
      findings.push(note("access", what, "Restrict the network, or the root's ACL."));
    }
  } catch (error) {
    if (!isCode(error, "NO_NODE")) throw error;
  }
  return findings;
}
