import { Pool, type PoolConfig } from "pg";
import {
  type PostgresSessionStore,
  type PostgresSessionStoreOptions,
  type PostgresStore,
  type PostgresStoreOptions,
  postgresSessionStore,
  postgresStore,
} from "../../src/stores/postgres/index.js";

/** A store on a pool of its own, which is closed with it. */
export async function byPool(
  url: string,
  options: PostgresStoreOptions = {},
  pool: PoolConfig = {},
): Promise<PostgresStore> {
  const client = new Pool({ connectionString: url, max: 4, ...pool });
  const store = postgresStore(client, { closeClient: true, ...options });
  await store.setUp();
  return store;
}

/** A store on locks of a session, with a pool of its own, which is closed with it. */
export async function bySession(
  url: string,
  options: PostgresSessionStoreOptions = {},
): Promise<PostgresSessionStore> {
  const client = new Pool({ connectionString: url, max: 4 });
  const store = postgresSessionStore(client, { closeClient: true, ...options });
  await store.setUp();
  return store;
}
