import { reasonOf, safeCause } from "../../core/cause.js";
import { HoldfastError, InvalidArgumentError, StoreUnavailableError } from "../../core/errors.js";
import { importInstalled } from "../shared/client-library.js";
import { explainNetworkFailure } from "../shared/network-failure.js";
import { switchedTlsOf, tlsTrouble } from "../shared/tls.js";
import { addressOf, type StoreUrl } from "../url.js";
import { PORT, type PostgresPool } from "./client.js";
import { toStoreError } from "./errors.js";
import { type PostgresStore, postgresStore } from "./index.js";
import { checkSchema, DEFAULT_SCHEMA } from "./schema.js";
import { type PostgresSessionStore, postgresSessionStore } from "./session/index.js";

const CONNECT_TIMEOUT_MS = 5_000;
/** Requests of many turns at once; waiters hold none. */
const CONNECTIONS = 4;

/** Opens the store that the URL names, after the database has shown that it has the tables, or has made them. */
export const openPostgresStore = (url: StoreUrl): Promise<PostgresStore | PostgresSessionStore> =>
  url.options.has("mode")
    ? openStore(url, postgresSessionStore)
    : openStore(url, (pool, options) => {
        const durableRelease = url.options.has("durableRelease");
        return postgresStore(pool, { ...options, durableRelease });
      });

async function openStore<S extends PostgresStore | PostgresSessionStore>(
  url: StoreUrl,
  make: (pool: PostgresPool, options: { schema: string; closeClient: boolean }) => S,
): Promise<S> {
  const schema = schemaOf(url);
  const pool = await openPool(url);
  const store = make(pool, { schema, closeClient: true });
  try {
    await store.setUp();
    return store;
  } catch (error) {
    await store.close();
    throw toConnectError(error, url);
  }
}

export const schemaOf = ({ options }: StoreUrl): string =>
  checkSchema(options.get("schema") ?? DEFAULT_SCHEMA);

/** A pool of `pg`, which connects at the first statement. */
export async function openPool(url: StoreUrl): Promise<PostgresPool> {
  const { host, port } = hostOf(url);
  const { module } = await importInstalled(
    ["pg"],
    "postgres: needs the client library pg: npm install pg. In a bundled program, connect() can't find it: " +
      "pass postgresStore() a pool that you have made (docs/start.md)",
  );
  const { default: pg } = module as { default: { Pool: new (options: object) => PostgresPool } };
  return new pg.Pool({
    host,
    port,
    user: url.user === "" ? undefined : url.user,
    password: url.password === "" ? undefined : url.password,
    database: url.path === "" || url.path === "/" ? undefined : url.path.slice(1),
    ssl: switchedTlsOf(url) ?? false,
    max: CONNECTIONS,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    allowExitOnIdle: true,
    keepAlive: true,
    application_name: "holdfast",
  });
}

function hostOf({ hosts }: StoreUrl): { host: string; port: number } {
  if (hosts.length > 1) {
    throw new InvalidArgumentError(
      "a postgres: URL has one host: name the primary, or the address that always leads to it",
    );
  }
  const [{ host, port }] = hosts as [StoreUrl["hosts"][number]];
  return { host, port: port ?? PORT };
}

/** Why the store could not be opened, in words; the client library's own are in `cause`. */
export function toConnectError(error: unknown, url: StoreUrl): unknown {
  const { host, port } = hostOf(url);
  const where = `PostgreSQL at ${addressOf(host, port)}`;
  const failure = toStoreError(error, where);
  if (HoldfastError.is(failure) && !/has been lost/.test(failure.message)) return failure;
  const text = `${(error as { code?: unknown } | null)?.code ?? ""} ${reasonOf(error)}`;
  const why =
    tlsTrouble(text, url) ??
    explainNetworkFailure(text) ??
    NETWORK.find(([pattern]) => pattern.test(text))?.[1] ??
    reasonOf(error);
  return new StoreUnavailableError(`can't connect to ${where}: ${why}`, {
    cause: safeCause(error),
  });
}

const NETWORK: readonly (readonly [RegExp, string])[] = [
  [/timeout exceeded|ETIMEDOUT/, `it gave no answer within ${CONNECT_TIMEOUT_MS} ms`],
  [/does not support SSL/, "the server does not offer TLS: leave tls out of the URL"],
  [
    /ECONNRESET|Connection terminated/,
    "the connection was closed at once: is it PostgreSQL that listens there?",
  ],
];
