import { join } from "node:path";
import { Redis } from "ioredis";
import { expect, onTestFinished } from "vitest";
import type { Store } from "../../src/core/store.js";
import type { LocksOptions } from "../../src/index.js";
import { type QuorumStoreOptions, quorumStore } from "../../src/stores/quorum/index.js";
import { recordOf } from "../../src/stores/quorum/keys.js";
import { checkHistory } from "../../src/verify/check/check.js";
import type { Fault } from "../../src/verify/fault.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { redisConnectionKind } from "../../src/verify/faults/redis-kind.js";
import type { Lab, Sited } from "../../src/verify/lab/lab.js";
import type { RedisOptions, RedisServer } from "../../src/verify/lab/redis.js";
import { TimeLine } from "../../src/verify/traffic/time-line.js";
import type { Worker } from "../../src/verify/traffic/worker.js";
import { freshFolder } from "./sqlite.js";
import { eventsOf, expectKept, happens, startWorkers, until } from "./worker.js";

type Address = Pick<RedisServer, "address" | "port">;

/** A store on these servers, which closes its clients. */
export async function byQuorum(
  servers: readonly Address[],
  { db = 0, ...options }: QuorumStoreOptions & { db?: number } = {},
): Promise<Store> {
  const clients = servers.map(({ address, port }) => {
    return new Redis({ host: address, port, db, maxRetriesPerRequest: 0 }).on("error", () => {});
  });
  const store = quorumStore(clients, { closeClients: true, ...options });
  await store.setUp();
  return store;
}

/** The URL of a quorum. `login`: `user:password@`. */
export const redlockUrl = (
  servers: readonly { readonly address: string; readonly port: number }[],
  login = "",
): string =>
  `redlock://${login}${servers.map(({ address, port }) => `${address}:${port}`).join(",")}`;

/** For a busy machine: order and safety are checked, not speed. First come, first served is not promised. */
const LIMITS = { lossMs: 1_000, wakeMs: 2_000, freeMs: 2_000, endMs: 3_000, fair: false };

/** Five servers, or as many as there are options; killed when the test is over. */
export async function startNodes(
  lab: Lab,
  options: (RedisOptions & Sited) | readonly (RedisOptions & Sited)[] = {},
): Promise<RedisServer[]> {
  const all = Array.isArray(options) ? options : [1, 2, 3, 4, 5].map(() => options);
  const servers = await Promise.all(all.map((one: RedisOptions & Sited) => lab.redis(one)));
  onTestFinished(async () => {
    await Promise.all(servers.map((server) => server.kill()));
  });
  return servers;
}

/** A proxy in front of each server; closed when the test is over. */
export async function startProxies(servers: readonly RedisServer[]): Promise<TcpProxy[]> {
  const proxies = await Promise.all(
    servers.map((server) => TcpProxy.open(server, { kindOf: redisConnectionKind })),
  );
  onTestFinished(async () => {
    await Promise.all(proxies.map((proxy) => proxy.close()));
  });
  return proxies;
}

export const urlOf = (places: readonly Address[], maxTtl = "1m"): string =>
  `redlock://${places.map(({ address, port }) => `${address}:${port}`).join(",")}?maxTtl=${maxTtl}`;

/** A worker for each URL, with a counter behind a fence beside them. */
export async function startQuorumWorkers(
  urls: readonly string[],
  options: LocksOptions = {},
): Promise<{ workers: Worker[]; timeLine: TimeLine }> {
  const timeLine = new TimeLine();
  const more = { timeLine, resourceFile: join(freshFolder(), "data.db") };
  const locks = { ttl: 1_500, wait: "20s", commandTimeout: 1_000, ...options } as const;
  const started = await Promise.all(
    urls.map((url, i) => startWorkers(1, url, locks, { client: `w${i + 1}`, ...more })),
  );
  return { workers: started.flatMap(({ workers }) => workers), timeLine };
}

export async function inject(timeLine: TimeLine, fault: Fault, more = {}): Promise<void> {
  timeLine.now({ kind: "injected", fault: fault.name, ...more });
  await fault.inject();
}

export async function heal(timeLine: TimeLine, fault: Fault): Promise<void> {
  await fault.heal();
  timeLine.now({ kind: "healed", fault: fault.name });
}

/** Waits for the name; `stands` resolves when its ticket is in the queue. */
export function queue(worker: Worker, name = "name") {
  const op = `${worker.client}.waits`;
  const granted = worker.acquire(name, {}, op);
  granted.catch(() => {});
  return { granted, stands: happens(worker.timeLine, "queued", (event) => event.op === op) };
}

export const renewals = (timeLine: TimeLine, op: string, afterMs: number): number =>
  eventsOf(timeLine, "renewed").filter((one) => one.op === op && one.atMs > afterMs).length;

export const closeAll = (workers: readonly Worker[]) =>
  Promise.all(workers.map((one) => one.close()));

/** Finds the keys that match and have a record, not the note that a ballot is over. */
const FIND_RECORDS = `local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local record = redis.call('GET', key)
  if record and string.sub(record, 1, 5) ~= 'over ' then found[#found + 1] = key end
end
return found`;

const recordsOn = (server: RedisServer, name: string): Promise<string> =>
  server.cli("EVAL", FIND_RECORDS, "0", recordOf(name));

/** Whether the server has a record of the name. */
export const hasRecord = async (server: RedisServer, name = "name"): Promise<boolean> =>
  (await recordsOn(server, `default:${name}`)) !== "";

/** The servers that have a record of any name. */
export async function withRecords(servers: readonly RedisServer[]): Promise<string[]> {
  const found = await Promise.all(
    servers.map(async (server) => {
      const keys = await recordsOn(server, "*");
      return keys === "" ? [] : [`${server.name}: ${keys}`];
    }),
  );
  return found.flat();
}

/** Releases are repeated to a node whose connection is being opened again. */
export const nothingIsLeft = (servers: readonly RedisServer[]): Promise<void> =>
  until("nothing is left", async () => (await withRecords(servers)).length === 0);

/** The later grant has the higher token; once its holder has entered, the earlier one can't write. */
export async function expectRefused(
  first: Worker,
  old: { op: string; token: bigint },
  second: Worker,
  granted: { op: string; token: bigint },
): Promise<void> {
  expect(granted.token).toBeGreaterThan(old.token);
  expect(await second.write(granted.op)).toBe(true);
  expect(await first.write(old.op)).toBe(false);
}

/** No promise was broken, and these rules were tested. */
export const expectAllKept = (timeLine: TimeLine, rules: readonly string[]): void =>
  expectKept(timeLine, rules, LIMITS);

/** Two clients held the name at the same time, which is reported; all other rules were kept, these for certain. */
export function expectOverlap(timeLine: TimeLine, kept: readonly string[]): void {
  const verdicts = checkHistory(timeLine.history(), LIMITS);
  const rules = (wanted: string) =>
    verdicts.filter(({ verdict }) => verdict === wanted).map(({ rule }) => rule);
  expect(rules("violated")).toEqual(["S1"]);
  expect(rules("ok")).toEqual(expect.arrayContaining([...kept]));
}
