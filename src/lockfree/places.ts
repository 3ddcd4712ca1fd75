import { InvalidArgumentError, StoreUnavailableError, UnsupportedError } from "../core/errors.js";
import type { VersionedPlace } from "../core/place.js";
import { checkOptions, checkText, orElse, show } from "../core/validate.js";
import {
  assign,
  type Columns,
  matchKey,
  quoteColumn,
  quoteTable,
  severalRows,
  versionOf,
} from "../postgres/sql.js";
import { checkClient, type EtcdClient } from "../stores/etcd/rpc/client.js";
import { modifiedAt } from "../stores/etcd/rpc/compare.js";
import { connectionOf, type RedisClient } from "../stores/redis/client.js";
import { ScriptRunner } from "../stores/redis/script-runner.js";
import { scriptOf } from "../stores/redis/scripts.js";
import { checkDatabase, type SqliteDatabase, type SqliteValue } from "../stores/sqlite/driver.js";
import { toStoreError } from "../stores/sqlite/errors.js";
import { retryWhileBusy } from "../stores/sqlite/retry.js";
import type { OptimisticOptions } from "./optimistic.js";

/** Keys of Redis and etcd are longer than names. */
const MOST_KEY_BYTES = 4_096;

/**
 * Makes `read` and `write` for `optimistic` of a place and a change. `change` is called once for each attempt,
 * with what was read; the result of `optimistic` is the value that was written, or null if there is nothing to
 * change.
 *
 * @example
 * ```ts
 * import { changing, optimistic, sqliteRow } from "holdfast/lockfree";
 * import { openSqlite } from "holdfast/stores/sqlite";
 *
 * const db = await openSqlite("shop.db"); // has a table: stock (item, count, version)
 * const hats = sqliteRow<{ count: number }>(db, "stock", { item: "hat" });
 * await optimistic({ ...changing(hats, ({ count }) => ({ count: count - 1 })), retries: 8 });
 * ```
 */
export function changing<Value, Next, Version>(
  place: VersionedPlace<Value, Next, Version>,
  change: (value: Value) => Next | Promise<Next>,
): Pick<
  OptimisticOptions<{ readonly value: Value; readonly version: Version } | null, Value | null>,
  "read" | "write"
> {
  if (typeof place?.read !== "function" || typeof change !== "function") {
    throw new InvalidArgumentError(
      `the place is ${show(place)} and change is ${show(change)}; pass a place with read and write, and a function`,
    );
  }
  return {
    read: () => place.read(),
    write: async (found) =>
      found === null ? null : place.write(await change(found.value), found.version),
  };
}

/**
 * A row of a table in SQLite whose column `version` counts its changes. Columns that `change` does not return
 * keep their values. `column`: another name of that column.
 */
export function sqliteRow<Row = Record<string, unknown>>(
  db: SqliteDatabase,
  table: string,
  key: Columns,
  options: { column?: string } = {},
): VersionedPlace<Row, Columns> {
  checkDatabase(db, "sqliteRow");
  checkOptions(options, "the options of sqliteRow", ["column"]);
  const column = orElse(options.column, "version");
  const version = quoteColumn(column);
  const all = async (text: string, values: unknown[]): Promise<unknown[]> => {
    try {
      return await retryWhileBusy(() => db.prepare(text).all(...(values as SqliteValue[])));
    } catch (error) {
      throw toStoreError(error, `with the table ${table}`);
    }
  };
  return {
    async read() {
      const values: unknown[] = [];
      const where = matchKey(key, values, "?");
      const rows = await all(`SELECT * FROM ${quoteTable(table)} WHERE ${where} LIMIT 2`, values);
      if (rows.length > 1) throw severalRows(table, key);
      if (rows.length === 0) return null;
      return { value: rows[0] as Row, version: versionOf(rows[0] as Columns, column) };
    },
    async write(changes, seen) {
      const values: unknown[] = [];
      const set = [...assign(changes, values, "?"), `${version} = coalesce(${version}, 0) + 1`];
      const text =
        `UPDATE ${quoteTable(table)} SET ${set.join(", ")} WHERE ${matchKey(key, values, "?")}` +
        ` AND ${version} IS ?${values.push(seen)} RETURNING *`;
      const [written] = await all(text, values);
      return written === undefined ? false : (written as Row);
    },
  };
}

const REPLACE = scriptOf(
  "replace",
  `local found = redis.call('GET', KEYS[1])
if ARGV[1] == 'absent' then
  if found then return 'changed' end
  redis.call('SET', KEYS[1], ARGV[3])
else
  if found ~= ARGV[2] then return 'changed' end
  redis.call('SET', KEYS[1], ARGV[3], 'KEEPTTL')
end
return 'written'`,
);
const READ = scriptOf(
  "read",
  `local found = redis.call('GET', KEYS[1])
if found then return '=' .. found end
return 'absent'`,
);

/**
 * A string in Redis, also in a cluster; null while there is none. The text is its own version: a text that was
 * changed and changed back counts as unchanged. One script writes, so the connection can be shared, which WATCH
 * forbids. An expiry that the key has stays.
 */
export function redisText(client: RedisClient, key: string): VersionedPlace<string | null, string> {
  const words = { prefix: key, page: "docs/optimistic.md", maker: "redisText" };
  const runner = new ScriptRunner(connectionOf(client, "redisText"), words);
  checkText(key, "the key", 1, MOST_KEY_BYTES);
  return {
    async read() {
      const reply = await runner.run(READ, [key], []);
      const value = reply === "absent" ? null : reply.slice(1);
      return { value, version: value };
    },
    async write(next, seen) {
      const condition = seen === null ? ["absent", ""] : ["is", String(seen)];
      const reply = await runner.run(REPLACE, [key], [...condition, checkNext(next)]);
      return reply === "written" ? next : false;
    },
  };
}

/** The value of a key in etcd, with its `mod_revision` as version; null while there is none. */
export function etcdText(
  client: Pick<EtcdClient, "txn" | "range">,
  key: string,
): VersionedPlace<string | null, string, bigint> {
  checkClient(client);
  checkText(key, "the key", 1, MOST_KEY_BYTES);
  const send = async <T>(call: () => Promise<T>): Promise<T> => {
    try {
      return await call();
    } catch (cause) {
      throw new StoreUnavailableError(
        `etcd gave no reply for the key ${show(key)}; the value may have been written`,
        { cause },
      );
    }
  };
  return {
    async read() {
      const kv = (await send(() => client.range({ key }))).kvs[0];
      return { value: kv?.value ?? null, version: kv?.modRevision ?? 0n };
    },
    async write(next, revision) {
      const txn = {
        compare: [modifiedAt(key, revision)],
        success: [{ put: { key, value: checkNext(next) } }],
      };
      return (await send(() => client.txn(txn))).succeeded ? next : false;
    },
  };
}

/**
 * A document of an HTTP service that has `ETag` and obeys `If-Match`; null while it answers 404. `headers` and
 * `fetch` are used for every request.
 */
export function httpDocument(
  url: string | URL,
  options: { headers?: Record<string, string>; fetch?: typeof fetch } = {},
): VersionedPlace<string | null, string, string | null> {
  checkOptions(options, "the options of httpDocument", ["headers", "fetch"]);
  const send = async (init: RequestInit, condition = {}): Promise<Response> => {
    const headers = { ...options.headers, ...condition };
    let response: Response;
    try {
      response = await (options.fetch ?? fetch)(url, { ...init, headers });
    } catch (cause) {
      throw new StoreUnavailableError(`no reply from ${hostOf(url)}: try again`, { cause });
    }
    if (response.ok || response.status === 404 || response.status === 412) return response;
    await response.body?.cancel();
    throw new StoreUnavailableError(
      `${hostOf(url)} answered ${init.method ?? "GET"} with ${response.status}`,
      { retryable: response.status >= 500 || response.status === 429 },
    );
  };
  return {
    async read() {
      const response = await send({});
      if (response.status === 404) {
        await response.body?.cancel();
        return { value: null, version: null };
      }
      return { value: await response.text(), version: strongTag(response, url) };
    },
    async write(next, tag) {
      const condition = tag === null ? { "if-none-match": "*" } : { "if-match": tag };
      const response = await send({ method: "PUT", body: checkNext(next) }, condition);
      await response.body?.cancel();
      return response.ok ? next : false;
    },
  };
}

/** `If-Match` compares strongly: with a weak tag, every write would be refused. */
function strongTag(response: Response, url: string | URL): string {
  const tag = response.headers.get("etag");
  if (tag !== null && !tag.startsWith("W/")) return tag;
  throw new UnsupportedError(
    `${hostOf(url)} sent ${tag === null ? "no ETag" : "a weak ETag"}: If-Match needs a strong one`,
  );
}

/** Not the whole URL, which may hold a password. */
const hostOf = (url: string | URL): string => new URL(url).host;

function checkNext(next: unknown): string {
  if (typeof next === "string") return next;
  throw new InvalidArgumentError(`change returned ${show(next)}; it must return the new text`);
}
