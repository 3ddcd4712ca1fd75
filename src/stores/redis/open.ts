import { randomUUID } from "node:crypto";
import { reasonOf } from "../../core/cause.js";
import { HoldfastError, StoreUnavailableError } from "../../core/errors.js";
import type { StoreUrl } from "../url.js";
import { connectionOf, type RedisClient } from "./client.js";
import { toConnectError } from "./connect-errors.js";
import { type Connection, reconnectsWhenDemoted } from "./connection.js";
import { toStoreError } from "./errors.js";
import { type RedisStore, redisStore } from "./index.js";
import { keyOf } from "./keys.js";
import { connectWithin, openClient } from "./open-client.js";
import { SCRIPTS } from "./scripts.js";
import { replicasOf, type Target, targetOf } from "./target.js";

/** Opens a store, after the server has shown that it grants locks. */
export async function openRedisStore(url: StoreUrl): Promise<RedisStore> {
  return openUntriedRedisStore(url, await openRedisClient(url, targetOf(url), checkScripts));
}

export function openUntriedRedisStore(url: StoreUrl, client: RedisClient): RedisStore {
  if (!url.options.has("cluster")) reconnectsWhenDemoted.add(client);
  connectionOf(client).unref();
  return redisStore(client, { closeClient: true, replicas: replicasOf(url) });
}

/** Opens a connection with whichever client library is installed, to the database that the URL names. */
export async function openRedisClient(
  url: StoreUrl,
  target: Target = targetOf(url),
  check: (connection: Connection, target: Target) => Promise<void> = async () => {},
): Promise<RedisClient> {
  replicasOf(url);
  let connection: Connection | undefined;
  try {
    const client = await openClient(target);
    const opened = connectionOf(client);
    connection = opened;
    await connectWithin(checkDatabase(opened).then(() => check(opened, target)));
    return client;
  } catch (error) {
    await connection?.close();
    throw HoldfastError.is(error) ? error : await toConnectError(error, target, url);
  }
}

/** ioredis reports ready although its own SELECT was refused. */
async function checkDatabase(connection: Connection): Promise<void> {
  if (connection.db === 0) return;
  const [server] = await connection.servers();
  await checkRequest(connection, () => server!.command("SELECT", String(connection.db)));
}

/** Runs the commands that every claim needs. A server that can't write just now may do so later. */
async function checkScripts(connection: Connection, { sentinel }: Target): Promise<void> {
  const keys = [keyOf(`holdfast-connect:${randomUUID()}`)];
  // A node of a cluster has some slots only, and refuses keys in different ones.
  if (!connection.cluster) keys.push(keyOf(`holdfast-connect:${randomUUID()}`));
  const isReplica = (error: HoldfastError): boolean =>
    sentinel === null && !connection.cluster && error.message.includes("READONLY");
  await checkRequest(connection, () => connection.run(SCRIPTS.probe, keys, []), isReplica);
}

/** Rejects if the server refuses the request for good, or with an error that `isFinal` accepts. */
async function checkRequest(
  connection: Connection,
  request: () => Promise<unknown>,
  isFinal: (error: HoldfastError) => boolean = () => false,
): Promise<void> {
  try {
    await request();
  } catch (error) {
    const failure = toStoreError(error, connection);
    if (!HoldfastError.is(failure)) throw failure;
    if (failure.retryable && !isFinal(failure)) return;
    const { cause } = failure;
    const message = (await describeSentinel(connection, cause)) ?? failure.message;
    throw new StoreUnavailableError(message, { cause, retryable: false });
  }
}

/** A message if the server is a sentinel, which knows no scripts; otherwise null. */
async function describeSentinel(connection: Connection, cause: unknown): Promise<string | null> {
  if (!/unknown command/i.test(reasonOf(cause))) return null;
  const [server] = await connection.servers();
  const role = await server!.command("ROLE").catch(() => null);
  if (!Array.isArray(role) || String(role[0]) !== "sentinel") return null;
  const names = (role[1] as unknown[]).map(String);
  const known = names.length === 0 ? "" : `; it watches ${names.join(", ")}`;
  return `${connection.where} is a sentinel, which grants no locks: add ?sentinel=NAME to the URL${known}`;
}
