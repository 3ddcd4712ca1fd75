import { onTestFinished, test } from "vitest";
import { guardFetch } from "../../src/fence/http.js";
import { memoryFence } from "../../src/fence/memory.js";
import { ZooKeeperClient } from "../../src/zookeeper/index.js";
import { serve } from "../support/http-server.js";
import { describeWith } from "../support/needs.js";
import {
  expectFenceSaves,
  inEtcd,
  inPostgres,
  openLab,
  PAUSED_TIMEOUT_MS,
  type Scene,
} from "./paused.js";

async function inZooKeeper(): Promise<Scene> {
  const [server] = (await (await openLab()).zookeeper()).servers;
  const where = `${server!.address}:${server!.port}`;
  const client = await ZooKeeperClient.open({ servers: [where] });
  onTestFinished(() => client.close());
  await client.create("/number", { data: "0" });
  return { where, value: async () => Number((await client.getData("/number")).data.toString()) };
}

/** A service whose handlers take a Request and return a Response. */
async function behindFetch(): Promise<Scene> {
  const fence = memoryFence();
  let value = 0;
  const handle = (method: string, body: string): Response => {
    if (method === "PUT") value = Number(body);
    return new Response(String(value));
  };
  const guarded = guardFetch({ fence, resource: () => "number" }, async (request, fenced) => {
    const body = await request.text();
    return fence.transaction(async (tx) => {
      await fence.guard(tx, "number", fenced!);
      return handle(request.method, body);
    });
  });
  const where = await serve(async (incoming, outgoing) => {
    let body = "";
    for await (const part of incoming) body += part;
    const { method = "GET", headers } = incoming;
    const request = new Request("http://service/number", {
      method,
      headers: { "fencing-token": String(headers["fencing-token"]) },
      body: method === "PUT" ? body : null,
    });
    const reply = await (incoming.url === "/number" ? guarded(request) : handle(method, body));
    outgoing.writeHead(reply.status, Object.fromEntries(reply.headers)).end(await reply.text());
  });
  return { where, value: () => value };
}

// Each takes seconds. paused-holders.test.ts has one fence of each kind of store that is quick enough.
describeWith(["postgres", "etcd", "zookeeper"], "holders that are paused past their lease", () => {
  test.each([
    ["postgres-row", inPostgres],
    ["etcd-txn", inEtcd],
    ["zookeeper", inZooKeeper],
  ] as const)(
    "lose no update behind a fence in %s, and lose some without it",
    {
      timeout: PAUSED_TIMEOUT_MS,
    },
    (kind, open) => expectFenceSaves(kind, open),
  );

  test(
    "lose no update behind guardFetch, and lose some without it",
    {
      timeout: PAUSED_TIMEOUT_MS,
    },
    () => expectFenceSaves("http", behindFetch),
  );
});
