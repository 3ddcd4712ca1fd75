import { check, type Finding, mergeServers, type Trial } from "../../../doctor/finding.js";
import type { StoreUrl } from "../../url.js";
import type { Connection, OneServer } from "../connection.js";
import { openRedisClient, openUntriedRedisStore } from "../open.js";
import { replicasOf } from "../target.js";
import { checkAccess } from "./access.js";
import { openConnection, withTimeout } from "./commands.js";
import { type Facts, readFacts } from "./facts.js";
import { checkKeys } from "./keys.js";
import { checkRights } from "./rights.js";
import { checkClock, checkLatency, checkSlots } from "./server.js";
import { judgeFacts } from "./settings.js";

/** Reports what endangers locks on a server, or on the primaries of a cluster. */
export async function examineRedis(url: StoreUrl, trial: Trial): Promise<readonly Finding[]> {
  const connection = await openConnection(url);
  try {
    const servers = await connection.servers();
    const tried = await trial(openUntriedRedisStore(url, await openRedisClient(url)));
    const works = tried.level !== "danger";
    const facts: Facts[] = [];
    const found: (readonly Finding[])[] = [];
    for (const server of servers) {
      facts.push(await readFacts(server));
      found.push([
        ...judgeFacts(facts.at(-1)!, {
          cluster: connection.cluster,
          replicas: replicasOf(url),
          works,
        }),
        ...(await checkServer(server, connection, url)),
      ]);
    }
    return [
      ...mergeServers(
        found,
        servers.map(({ where }) => where),
      ),
      tried,
      ...(await check("keys", () => checkKeys(connection, servers))),
      ...(await check("access", () => checkAccess(url, facts[0]!))),
    ];
  } finally {
    // The server may be gone by now.
    await withTimeout("QUIT", connection.close()).catch(() => {});
  }
}

/** One check after the other: a measured time must not include the commands of another check. */
const checkServer = async (
  server: OneServer,
  connection: Connection,
  url: StoreUrl,
): Promise<readonly Finding[]> => [
  ...(connection.cluster ? await check("cluster", () => checkSlots(server)) : []),
  ...(await check("clock", () => checkClock(server))),
  ...(await check("latency", () => checkLatency(server))),
  ...(await check("rights", () => checkRights(server, connection, url))),
];
