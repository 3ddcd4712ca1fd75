import { type Finding, reasonOf, tryOut } from "../../../core/doctor.js";
import { HoldfastError, StoreUnavailableError } from "../../../core/errors.js";
import type { StoreUrl } from "../../../core/url.js";
import type { OneServer } from "../client.js";
import { openRedisClient, openUntriedRedisStore, replicasOf } from "../open.js";
import { accessOf } from "./access.js";
import { inTime, open } from "./ask.js";
import { clusterState } from "./cluster.js";
import { type Facts, factsOf } from "./facts.js";
import { judge } from "./judge.js";
import { keysOf } from "./keys.js";
import { rightsOf } from "./rights.js";
import { clockOf, latencyOf } from "./time.js";

/** What endangers locks on a server, or on the primaries of a cluster. */
export async function examineRedis(url: StoreUrl): Promise<readonly Finding[]> {
  const connection = await open(url);
  try {
    const servers = await connection.servers();
    const trial = await tryOut(openUntriedRedisStore(url, await openRedisClient(url)));
    const works = trial.level !== "danger";
    const all: Finding[][] = [];
    let first: Facts | undefined;
    for (const server of servers) {
      const facts = await factsOf(server);
      first ??= facts;
      all.push([
        ...judge(facts, { cluster: connection.cluster, replicas: replicasOf(url), works }),
        ...(await clusterState(server, connection.cluster)),
        await clockOf(server),
        await latencyOf(server),
        await rightsOf(server, connection, url),
      ]);
    }
    return [
      ...merged(all, servers),
      trial,
      ...(await keysOf(connection, servers)),
      ...(await accessOf(url, first!)),
    ];
  } catch (error) {
    if (HoldfastError.is(error)) throw error;
    throw new StoreUnavailableError(`the Redis server is gone: ${reasonOf(error)}`, {
      cause: error,
    });
  } finally {
    // It may have died in the meantime.
    await inTime("QUIT", connection.close()).catch(() => {});
  }
}

/** What is the same on all servers is said once. */
function merged(all: readonly Finding[][], servers: readonly OneServer[]): Finding[] {
  if (servers.length === 1) return all[0]!;
  const places = new Map<string, { finding: Finding; where: string[] }>();
  for (const [i, findings] of all.entries()) {
    for (const finding of findings) {
      const key = JSON.stringify(finding);
      const place = places.get(key) ?? { finding, where: [] };
      place.where.push(servers[i]!.where);
      places.set(key, place);
    }
  }
  return [...places.values()].map(({ finding, where }) =>
    where.length === servers.length ? finding : { ...finding, where: where.join(", ") },
  );
}
