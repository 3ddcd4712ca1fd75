import { reasonOf, safeCause } from "../core/cause.js";
import { InvalidArgumentError, StoreUnavailableError } from "../core/errors.js";
import { unknownOutcome, type VersionedPlace } from "../core/place.js";
import { checkOptions, checkText, orElse, show } from "../core/validate.js";
import {
  assignVersioned,
  type Columns,
  describeRow,
  matchKey,
  quoteColumn,
  quoteTable,
  severalRows,
  versionOf,
} from "../postgres/sql.js";
import { checkClient, type EtcdClient } from "../stores/etcd/rpc/client.js";
import { modifiedAt } from "../stores/etcd/rpc/compare.js";
import { EtcdError } from "../stores/etcd/rpc/errors.js";
import { connectionOf, type RedisClient } from "../stores/redis/client.js";
import { messageOf, wasNotSent } from "../stores/redis/errors.js";
import { ScriptRunner } from "../stores/redis/script-runner.js";
import { scriptOf } from "../stores/redis/scripts.js";
import { checkDatabase, type SqliteDatabase, type SqliteValue } from "../stores/sqlite/driver.js";
import { isFileProblem, toStoreError } from "../stores/sqlite/errors.js";
import { retryWhileBusy } from "../stores/sqlite/retry.js";
import { checkNext } from "./next-text.js";
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
  "read" | "write" | "resource"
> {
  if (typeof place?.read !== "function" || typeof change !== "function") {
    throw new InvalidArgumentError(
      `the place is ${show(place)} and change is ${show(change)}; pass a place with read and write, and a function`,
    );
  }
  return {
    resource: place.resource,
    read: () => place.read(),
    write: async (found) =>
      found === null ? null : place.write(await change(found.value), found.version),
  };
}

/**
 * A row of a table in SQLite whose column `version` counts its changes. Columns that `change` does not return
 * keep their values. `column`: another name of that column. Every writer of the table must raise the version, and
 * a row that is deleted and made again must not get a version that it had before.
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
      // An error in the statement or its values is about the caller's own table.
      throw isFileProblem(error) ? toStoreError(error, `with the table ${table}`) : error;
    }
  };
  return {
    resource: describeRow(table, key),
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
      const set = assignVersioned(changes, { column, seen }, values, "?");
      const text =
        `UPDATE ${quoteTable(table)} SET ${set} WHERE ${matchKey(key, values, "?")}` +
        ` AND ${version} IS ?${values.push(seen)} RETURNING *`;
      const [written] = await all(text, values);
      return written === undefined ? false : (written as Row);
    },
  };
}

/** Another type of value is the user's own: the reply says so, and nothing is touched. */
const GET = `local found = redis.pcall('GET', KEYS[1])
if type(found) == 'table' then
  if string.find(found.err, 'WRONGTYPE', 1, true) then return 'no text' end
  return found
end`;
const REPLACE = scriptOf(
  "replace",
  `${GET}
if ARGV[1] == 'absent' then
  if found then return 'changed' end
  redis.call('SET', KEYS[1], ARGV[3])
else
  if found ~= ARGV[2] then return 'changed' end
  redis.call('SET', KEYS[1], ARGV[3], 'KEEPTTL')
end
return 'written'`,
);
/** With the number of bytes: the client replaces those that are no UTF-8, and the text never equals them. */
const READ = scriptOf(
  "read",
  `${GET}\nif found then return #found .. '=' .. found end\nreturn 'absent'`,
);

/** The server's own errors begin with a code; the clients' are sentences. */
const REPLIED = /^[A-Z]{2,}\b/;

/**
 * A string in Redis, also in a cluster; null while there is none. The text is its own version: a text that was
 * changed and changed back counts as unchanged. One script writes, so the connection can be shared, which WATCH
 * forbids. An expiry that the key has stays.
 */
export function redisText(client: RedisClient, key: string): VersionedPlace<string | null, string> {
  const words = { prefix: key, page: "docs/optimistic.md", maker: "redisText" };
  const connection = connectionOf(client, "redisText");
  const runner = new ScriptRunner(connection, words);
  checkText(key, "the key", 1, MOST_KEY_BYTES);
  const resource = `the key ${show(key)}`;
  const noText = (what: string): InvalidArgumentError =>
    new InvalidArgumentError(`${resource} at ${connection.where} ${what}: use another key`);
  const checkType = (reply: string): string => {
    if (reply !== "no text") return reply;
    throw noText("does not hold a string");
  };
  return {
    resource,
    async read() {
      const reply = checkType(await runner.run(READ, [key], []));
      if (reply === "absent") return { value: null, version: null };
      const [bytes] = reply.split("=", 1) as [string];
      const value = reply.slice(bytes.length + 1);
      if (Buffer.byteLength(value) !== Number(bytes))
        throw noText("holds bytes that are not UTF-8");
      return { value, version: value };
    },
    async write(next, seen) {
      const condition = seen === null ? ["absent", ""] : ["is", String(seen)];
      const args = [...condition, checkNext(next)];
      const { allLosses } = connection;
      const reply = await connection.run(REPLACE, [key], args).catch((error: unknown) => {
        const known = runner.toStoreError(error);
        if (REPLIED.test(messageOf(error)) || wasNotSent(error)) throw known;
        throw unknownOutcome(resource, reasonOf(known), safeCause(error));
      });
      if (checkType(String(reply)) === "written") return next;
      // ioredis has sent the script again, which may have met the change of the first time.
      if (connection.allLosses !== allLosses) {
        throw unknownOutcome(resource, `the connection to ${connection.where} was lost on the way`);
      }
      return false;
    },
  };
}

/**
 * The value of a key in etcd, with its `mod_revision` as version; null while there is none. A lease that the key
 * has stays.
 */
export function etcdText(
  client: Pick<EtcdClient, "txn" | "range">,
  key: string,
): VersionedPlace<string | null, string, bigint> {
  checkClient(client);
  checkText(key, "the key", 1, MOST_KEY_BYTES);
  const resource = `the key ${show(key)}`;
  return {
    resource,
    async read() {
      const { kvs } = await client.range({ key }).catch((error: unknown) => {
        throw unavailable(error);
      });
      const value = kvs[0]?.value ?? null;
      // The client replaces bytes that are not UTF-8 by this character, and the write would keep it.
      if (value?.includes("\ufffd")) {
        throw new InvalidArgumentError(
          `${resource} holds bytes that are not UTF-8, or U+FFFD in place of them: use another key`,
        );
      }
      return { value, version: kvs[0]?.modRevision ?? 0n };
    },
    async write(next, revision) {
      const put = { key, value: checkNext(next), ignoreLease: revision > 0n };
      const txn = { compare: [modifiedAt(key, revision)], success: [{ put }] };
      const { succeeded } = await client.txn(txn).catch((error: unknown) => {
        if (error instanceof EtcdError && error.executed === "no") throw unavailable(error);
        throw unknownOutcome(resource, reasonOf(error), error);
      });
      return succeeded ? next : false;
    },
  };
}

const unavailable = (error: unknown): StoreUnavailableError =>
  new StoreUnavailableError(reasonOf(error), {
    cause: error,
    retryable: error instanceof EtcdError && error.retryable,
  });
