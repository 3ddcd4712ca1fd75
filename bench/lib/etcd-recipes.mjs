import { randomUUID } from "node:crypto";
import { sleepMs } from "./clock.mjs";

/** etcd's ttl is in whole seconds; below this the server's own tick is most of what is seen. */
const TTL_MIN_S = 2;

export const secondsOf = (ttlMs) => Math.max(TTL_MIN_S, Math.ceil(ttlMs / 1_000));

export async function openClient({ endpoint }) {
  const { openEtcdClient } = await import("../../dist/stores/etcd/rpc/client.js");
  return openEtcdClient({ endpoints: [endpoint] });
}

/** A client and one lease, kept alive, for all keys of this process. */
export async function openSession(place, { ttlMs }) {
  const client = await openClient(place);
  const { id: lease, ttlS } = await client.leaseGrant(secondsOf(ttlMs));
  const keepAlive = () => client.leaseKeepAlive(lease).catch(() => {});
  const timer = setInterval(keepAlive, (ttlS * 1_000) / 3).unref();
  return {
    client,
    lease,
    async close() {
      clearInterval(timer);
      await client.leaseRevoke(lease);
      await client.close();
    },
  };
}

export const isAbsent = (key) => ({
  key,
  target: "CREATE",
  result: "EQUAL",
  createRevision: 0n,
});

/** All keys of a queue. */
const queueOf = (name) => ({ key: `${name}/`, rangeEnd: `${name}0` });

/** The first claim, or the last before a revision: `rest` narrows the range. */
const oneOf = (name, sortOrder, rest = {}) => ({
  ...queueOf(name),
  sortTarget: "CREATE",
  sortOrder,
  limit: 1,
  keysOnly: true,
  ...rest,
});

/** The key of a claim and what was there with it, in one step. */
async function claim({ client, lease }, name, range) {
  const key = `${name}/${randomUUID()}`;
  const success = [{ put: { key, value: "", lease } }];
  if (range !== undefined) success.push({ range });
  const { revision, responses } = await client.txn({ compare: [isAbsent(key)], success });
  return { key, revision, kvs: responses[1]?.range.kvs };
}

/** In the end both recipes are held and released alike. Each has keys of its own, below `root`. */
const lockOn = (session, root, acquire) => ({
  acquire: (name) => acquire(`${root}/${name}`),
  release: (key) => session.client.txn({ success: [{ delete: { key } }] }),
  close: () => session.close(),
  expiresInMs: (name) => expiresInMs(session.client, queueOf(`${root}/${name}`)),
});

/**
 * The plain recipe: each waiter watches the key before its own. When that has gone, it reads whether
 * its own still stands (its lease may have expired) and whether somebody is still before it (a waiter
 * that gave up went, not the holder).
 */
export async function openPredecessorQueue(place, terms) {
  const session = await openSession(place, terms);
  const { client } = session;
  return lockOn(session, "predecessor", async (name) => {
    // The newest two: its own, and the one before it, without a trip of its own for that.
    const newest = oneOf(name, "DESCEND", { limit: 2 });
    const { key, revision: mine, kvs } = await claim(session, name, newest);
    const before = oneOf(name, "DESCEND", { maxCreateRevision: mine - 1n });
    let predecessor = kvs[1];
    let seen = mine;
    while (predecessor !== undefined) {
      await deletionOf(client, predecessor.key, seen + 1n);
      const { revision, responses } = await client.txn({
        success: [{ range: { key, keysOnly: true } }, { range: before }],
      });
      const [own, next] = responses.map(({ range }) => range.kvs[0]);
      if (own === undefined) throw new Error("its claim has expired");
      predecessor = next;
      seen = revision;
    }
    return key;
  });
}

function deletionOf(client, key, startRevision) {
  return new Promise((resolve) => {
    const watch = client.watch(
      { key, startRevision },
      {
        created() {},
        events(events) {
          if (!events.some(({ type }) => type === "DELETE")) return;
          watch.cancel();
          resolve();
        },
        gap: resolve,
      },
    );
  });
}

/**
 * A prototype, without what makes it safe: one watch for all waiters of a process and name. Its
 * events come in the order of revisions, so the queue is known at each of them, and who has become
 * its head holds the name without reading anything.
 */
export async function openNameQueue(place, terms) {
  const session = await openSession(place, terms);
  const queues = new Map();
  const waitIn = (queue, key) =>
    new Promise((resolve) => {
      queue.waiters.set(key, resolve);
      queue.advance();
    });
  return lockOn(session, "name", async (name) => {
    // A waiter that watches need not read: the events show the claims before it.
    const all = { ...oneOf(name, "ASCEND"), limit: 0 };
    const { key, revision, kvs } = await claim(session, name, queues.has(name) ? undefined : all);
    if (kvs?.[0].key === key) return key;
    let queue = queues.get(name);
    if (queue === undefined) {
      // The last waiter has gone while this one claimed without a read.
      const { revision: readAt, kvs: there } =
        kvs === undefined ? await session.client.range(all) : { revision, kvs };
      queue = queues.get(name);
      if (queue === undefined) {
        queue = watchQueue(session, name, { keys: there.map((kv) => kv.key), revision: readAt });
        queue.ended = () => queues.delete(name);
        queues.set(name, queue);
      }
    }
    await waitIn(queue, key);
    return key;
  });
}

function watchQueue({ client }, name, { keys, revision }) {
  // In the order of their creation.
  const standing = new Set(keys);
  const queue = { waiters: new Map(), advance, ended() {} };
  const watch = client.watch(
    { ...queueOf(name), startRevision: revision + 1n },
    {
      created() {},
      events(events) {
        for (const { type, kv } of events) {
          if (type === "PUT") standing.add(kv.key);
          else standing.delete(kv.key);
        }
        advance();
      },
      // Nothing is compacted here.
      gap() {},
    },
  );
  return queue;

  function advance() {
    const [head] = standing;
    const grant = queue.waiters.get(head);
    if (grant === undefined) return;
    queue.waiters.delete(head);
    if (queue.waiters.size === 0) {
      watch.cancel();
      queue.ended();
    }
    grant();
  }
}

/**
 * Until the lease of the oldest key in the range expires. The server says whole seconds; the moment
 * at which its answer changes says the rest.
 */
export async function expiresInMs(client, range) {
  const { kvs } = await client.range({ ...oneOf("", "ASCEND"), rangeEnd: undefined, ...range });
  const lease = kvs[0].lease;
  return toTheEdge(async () => (await client.leaseTimeToLive(lease)).ttlS);
}

const LOOK_MS = 5;

/** `readS`: what is left, in seconds, rounded down. Answers in milliseconds from when it was called. */
export async function toTheEdge(readS) {
  const fromMs = performance.now();
  const first = Math.floor(await readS());
  let left = first;
  while (left === first) {
    await sleepMs(LOOK_MS);
    left = Math.floor(await readS());
  }
  return performance.now() - fromMs + (left + 1) * 1_000;
}
