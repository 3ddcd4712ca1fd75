// Buys the last item of a shop under a lease; told by its arguments whether to use the fence.
// Prints what it has read, waits for a line on stdin, and then writes.
import { once } from "node:events";
import { connect } from "holdfast";
import { zookeeperFence } from "holdfast/fence/zookeeper";
import { ZooKeeperClient } from "holdfast/zookeeper";

const [url, buyer, kind] = process.argv.slice(2);
const servers = [new URL(url).host];
// Its session outlives the pause, so that the late write reaches the server.
const client = await ZooKeeperClient.open({ servers, sessionTimeoutMs: 60_000 });
const fence = kind === "fenced" ? zookeeperFence(client) : undefined;
const locks = await connect(url, { ttl: "1s" });

async function buy(lease) {
  const count = Number((await client.getData("/stock")).data.toString());
  console.log(`read ${count}`);
  await once(process.stdin, "data");
  if (count === 0) return "sold out";
  const tx = [
    { op: "setData", path: "/stock", data: String(count - 1) },
    { op: "create", path: `/orders/${buyer}` },
  ];
  try {
    await fence?.guard(tx, "stock", lease);
    await (fence === undefined ? client.multi(tx) : fence.commit(tx));
    return "bought";
  } catch (error) {
    return error.code;
  }
}

// A lease that is lost does not interrupt the function: only its writes matter here.
const options = { wait: "30s", onLost: "return", ...(fence && { fence }) };
console.log(await locks.withLock("stock", options, buy));
await locks.close();
await client.close();
process.exit();
