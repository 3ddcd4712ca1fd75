// Increments a number under a lease, and stops past the end of the lease between its read and its write, as a
// paused process does. Prints how many of its writes were accepted, and how many were refused. Begins when it is told
// to, by a byte of input.
// Usage: node incrementer.mjs KIND guarded|plain WHERE LOCKS ROUNDS SEED
// With tokens for ROUNDS ("5,3,…"), writes each of these numbers under itself as the token. Prints the accepted ones.
import { once } from "node:events";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { connect, createLocks } from "holdfast";
import { placeFence } from "holdfast/fence/compare-and-set";
import { etcdFence } from "holdfast/fence/etcd";
import { openFileFence } from "holdfast/fence/file";
import { fencedFetch } from "holdfast/fence/http";
import { guardRow, postgresFence } from "holdfast/fence/postgres";
import { redisFence } from "holdfast/fence/redis";
import { sqliteFence } from "holdfast/fence/sqlite";
import { zookeeperFence } from "holdfast/fence/zookeeper";
import { etcdStore, guardTxn, openEtcdClient } from "holdfast/stores/etcd";
import { openSqlite } from "holdfast/stores/sqlite";
import { seededRandom } from "holdfast/testing";
import { ZooKeeperClient } from "holdfast/zookeeper";
import { Redis } from "ioredis";
import pg from "pg";
import { s3Place } from "./s3.mjs";

const [kind, guarding, where, locksUrl, rounds, seed] = process.argv.slice(2);
const isGuarded = guarding === "guarded";
/** etcd counts in seconds; the locks of the others are in a file. */
const TTL_MS = kind === "etcd-txn" ? 1_000 : 250;
const LOCKS = { ttl: TTL_MS, wait: "60s" };

async function inTransaction(pool, work) {
  const tx = await pool.connect();
  try {
    await tx.query("BEGIN");
    await work(tx);
    await tx.query("COMMIT");
  } catch (error) {
    await tx.query("ROLLBACK");
    throw error;
  } finally {
    tx.release();
  }
}

/** For each kind: the fence, how to read, how to write with and without it, and how to close. */
const KINDS = {
  async sqlite() {
    const db = await openSqlite(where);
    db.exec("PRAGMA busy_timeout = 5000");
    const fence = sqliteFence(db);
    const set = db.prepare("UPDATE counter SET value = ?");
    return {
      fence,
      read: () => db.prepare("SELECT value FROM counter").get().value,
      write(value, lease) {
        db.exec("BEGIN IMMEDIATE");
        try {
          if (isGuarded) fence.guardSync(db, "number", lease);
          set.run(value);
          db.exec("COMMIT");
        } catch (error) {
          db.exec("ROLLBACK");
          throw error;
        }
      },
      close: () => db.close(),
    };
  },
  async file() {
    const fence = await openFileFence(where);
    const path = join(where, "number");
    return {
      fence,
      read: async () => Number(await readFile(path, "utf8")),
      write: (value, lease) =>
        isGuarded ? fence.replace("number", lease, `${value}`) : writeFile(path, `${value}`),
      close: () => fence.close(),
    };
  },
  async redis() {
    const redis = new Redis(where);
    const fence = redisFence(redis);
    return {
      fence,
      read: async () => Number(await redis.get("value:{number}")),
      async write(value, lease) {
        if (!isGuarded) return redis.set("value:{number}", value);
        const tx = { commands: [["SET", "value:{number}", value]] };
        await fence.guard(tx, "number", lease);
        await fence.commit(tx);
      },
      close: () => redis.disconnect(),
    };
  },
  async postgres() {
    const pool = new pg.Pool({ connectionString: where, max: 2 });
    const fence = postgresFence(pool);
    const set = "UPDATE counter SET value = $1";
    return {
      fence,
      read: async () => (await pool.query("SELECT value FROM counter")).rows[0].value,
      async write(value, lease) {
        if (!isGuarded) return pool.query(set, [value]);
        await inTransaction(pool, async (tx) => {
          await fence.guard(tx, "number", lease);
          await tx.query(set, [value]);
        });
      },
      close: () => pool.end(),
    };
  },
  async "postgres-row"() {
    const pool = new pg.Pool({ connectionString: where, max: 2 });
    const change = (lease, options) =>
      inTransaction(pool, (tx) => guardRow(tx, "counter", { id: 1 }, lease, options));
    return {
      // Entering is a guard of the row without a change.
      fence: { enter: (_tx, _resource, lease) => change(lease) },
      read: async () => (await pool.query("SELECT value FROM counter")).rows[0].value,
      write: (value, lease) =>
        isGuarded
          ? change(lease, { set: { value } })
          : pool.query("UPDATE counter SET value = $1", [value]),
      close: () => pool.end(),
    };
  },
  async "etcd-txn"() {
    const client = await openEtcdClient({ endpoints: [where] });
    return {
      fence: undefined,
      locks: createLocks(etcdStore(client), LOCKS),
      read: async () => Number((await client.range({ key: "number" })).kvs[0].value),
      async write(value, lease) {
        const compare = isGuarded ? [guardTxn(lease)] : [];
        const put = { key: "number", value: `${value}` };
        const { succeeded } = await client.txn({ compare, success: [{ put }] });
        if (!succeeded)
          throw Object.assign(new Error("the claim is gone"), { code: "STALE_TOKEN" });
      },
      close: () => client.close(),
    };
  },
  async etcd() {
    const client = await openEtcdClient({ endpoints: [where] });
    const fence = etcdFence(client);
    return {
      fence,
      read: async () => Number((await client.range({ key: "number" })).kvs[0].value),
      async write(value, lease) {
        const tx = { compare: [], success: [{ put: { key: "number", value: `${value}` } }] };
        if (!isGuarded) return client.txn(tx);
        await fence.guard(tx, "number", lease, { strict: true });
        await fence.commit(tx);
      },
      close: () => client.close(),
    };
  },
  async zookeeper() {
    const client = await ZooKeeperClient.open({ servers: [where] });
    const fence = zookeeperFence(client);
    return {
      fence,
      read: async () => Number((await client.getData("/number")).data.toString()),
      async write(value, lease) {
        const tx = [{ op: "setData", path: "/number", data: `${value}` }];
        if (!isGuarded) return client.multi(tx);
        await fence.guard(tx, "number", lease);
        await fence.commit(tx);
      },
      close: () => client.close(),
    };
  },
  async http() {
    // A read under the lease enters, because it carries the token too.
    const plain = async (method, value) => {
      const reply = await fetch(`${where}/plain`, { method, body: value });
      return reply.text();
    };
    const fenced = async (lease, method, value) => {
      const reply = await fencedFetch({ token: lease.token, floor: lease.floor })(
        `${where}/number`,
        { method, body: value },
      );
      return reply.text();
    };
    return {
      fence: undefined,
      read: async (lease) => Number(isGuarded ? await fenced(lease, "GET") : await plain("GET")),
      write: (value, lease) =>
        isGuarded ? fenced(lease, "PUT", `${value}`) : plain("PUT", `${value}`),
      close() {},
    };
  },
  async objects() {
    const place = s3Place(where);
    const fence = placeFence(place);
    return {
      fence,
      pausesInWrite: true,
      read: async () => Number((await place.read("number")).value),
      // Without the fence, the holder writes what it has read into whatever version it finds.
      async write(value, lease, pause) {
        // Paused here, or between the fence's own read and its PUT, where only the version tells that another
        // has entered.
        if (!isGuarded || random.unit() < 0.5) pause();
        const afterPause = () => {
          pause();
          return `${value}`;
        };
        if (isGuarded) return fence.update("number", lease, afterPause);
        for (;;) {
          const { highest, version } = await place.read("number");
          if (await place.write("number", { value: `${value}`, highest }, version)) return;
        }
      },
      close() {},
    };
  },
};

const opened = await KINDS[kind]();
const { fence, pausesInWrite = false, read, write, close } = opened;
const locks = opened.locks ?? (await connect(locksUrl, LOCKS));
const options = {
  onLost: "return",
  ...(isGuarded && fence !== undefined && { fence, resource: "number" }),
};
const counts = { accepted: 0, refused: 0 };
const random = seededRandom(Number(seed));
const nothing = new Int32Array(new SharedArrayBuffer(4));

async function writeTokens(tokens) {
  const accepted = [];
  for (const token of tokens) {
    try {
      await write(token, { token: BigInt(token), floor: BigInt(token) });
      accepted.push(token);
    } catch (error) {
      if (error.code !== "STALE_TOKEN") throw error;
    }
    const value = await read();
    if (accepted.at(-1) > value) throw new Error(`${value} was written after ${accepted.at(-1)}`);
  }
  return { accepted };
}

async function increment() {
  for (let round = 0; round < Number(rounds); round++) {
    try {
      await locks.withLock("number", options, async (lease) => {
        const value = await read(lease);
        let pauseMs = random.unit() < 0.6 ? TTL_MS * (0.8 + random.unit()) : 0;
        // The event loop stands still, so nothing renews the lease and nothing tells that it is over.
        const pause = () => {
          Atomics.wait(nothing, 0, 0, pauseMs);
          pauseMs = 0;
        };
        if (!pausesInWrite) pause();
        await write(value + 1, lease, pause);
        counts.accepted++;
      });
    } catch (error) {
      // Lost before the work began: nothing was read or written.
      if (error.code === "LEASE_LOST") continue;
      if (error.code !== "STALE_TOKEN") throw error;
      counts.refused++;
    }
  }
  return counts;
}

console.log("ready");
await once(process.stdin, "data");
process.stdin.destroy();
const isTokens = rounds.includes(",");
console.log(
  JSON.stringify(await (isTokens ? writeTokens(rounds.split(",").map(Number)) : increment())),
);
await locks.close();
await close();
