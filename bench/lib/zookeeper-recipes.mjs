export async function openClient({ server }, { ttlMs }) {
  const { ZooKeeperClient } = await import("../../dist/zookeeper/index.js");
  return ZooKeeperClient.open({ servers: [server], sessionTimeoutMs: ttlMs });
}

/**
 * The classic recipe: an ephemeral sequential node for each claim; the first one holds, and each other one
 * watches the node before its own, and reads the children again when that has gone. `driver` has the calls of
 * a client: `make(path)`, `claim(path)`, `children(path)`, `gone(path)`, `remove(path)` and `close()`.
 */
export function recipeOn(driver, root) {
  const parents = new Map();
  const parentOf = (name) => {
    const path = `/${root}-${Buffer.from(name).toString("hex")}`;
    if (!parents.has(name)) parents.set(name, driver.make(path));
    return parents.get(name).then(() => path);
  };
  return {
    async acquire(name) {
      const parent = await parentOf(name);
      const own = await driver.claim(`${parent}/claim-`);
      for (;;) {
        const children = (await driver.children(parent)).sort();
        const at = children.indexOf(own.slice(parent.length + 1));
        if (at < 0) throw new Error("its claim has expired");
        if (at === 0) return own;
        await driver.gone(`${parent}/${children[at - 1]}`);
      }
    },
    release: (own) => driver.remove(own),
    close: () => driver.close(),
  };
}

/** The calls of node-zookeeper-client, which is written in JavaScript. */
export async function openPureDriver({ server }, { ttlMs }) {
  const { default: zookeeper } = await import("node-zookeeper-client");
  const { CreateMode, Exception } = zookeeper;
  const client = zookeeper.createClient(server, { sessionTimeout: ttlMs });
  await new Promise((resolve) => {
    client.once("connected", resolve);
    client.connect();
  });
  const call = (method, ...args) =>
    new Promise((resolve, reject) => {
      client[method](...args, (error, value) => (error ? reject(error) : resolve(value)));
    });
  const isThere = (error) => error.getCode?.() === Exception.NODE_EXISTS;
  return {
    make: (path) => call("create", path, CreateMode.PERSISTENT).catch(unless(isThere)),
    claim: (path) => call("create", path, CreateMode.EPHEMERAL_SEQUENTIAL),
    children: (path) => call("getChildren", path),
    gone: (path) =>
      new Promise((resolve, reject) => {
        client.exists(path, resolve, (error, stat) => {
          if (error) reject(error);
          else if (!stat) resolve();
        });
      }),
    remove: (path) => call("remove", path),
    close: async () => client.close(),
  };
}

/** The calls of `zookeeper`, which binds ZooKeeper's own client in C. */
export async function openNativeDriver({ server }, { ttlMs }) {
  const { default: ZooKeeper } = await import("zookeeper");
  const { ZOO_EPHEMERAL, ZOO_SEQUENCE, ZNODEEXISTS, ZNONODE, ZOO_LOG_LEVEL_ERROR } =
    ZooKeeper.constants;
  const client = new ZooKeeper({
    connect: server,
    timeout: ttlMs,
    debug_level: ZOO_LOG_LEVEL_ERROR,
    host_order_deterministic: true,
  });
  await new Promise((resolve) => {
    client.once("connect", resolve);
    client.init({});
  });
  // Its errors have the code in their text alone: "-110 node exists".
  const codeIs = (code) => (error) => Number.parseInt(error.message, 10) === code;
  return {
    make: (path) => client.create(path, "", 0).catch(unless(codeIs(ZNODEEXISTS))),
    claim: (path) => client.create(path, "", ZOO_EPHEMERAL | ZOO_SEQUENCE),
    children: (path) => client.get_children(path, false),
    gone: (path) =>
      new Promise((resolve, reject) => {
        client.w_exists(path, resolve).catch((error) => {
          if (codeIs(ZNONODE)(error)) resolve();
          else reject(error);
        });
      }),
    remove: (path) => client.delete_(path, -1),
    close: async () => client.close(),
  };
}

const unless = (isExpected) => (error) => {
  if (!isExpected(error)) throw error;
};
