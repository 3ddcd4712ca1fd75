import { expect, onTestFinished, test } from "vitest";
import { OneEtcd } from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { clientOf, openProxy, put, SILENCE_MS, succeeds, watch } from "./etcd-clients.js";

describeWith(["etcd"], "a gRPC proxy whose server fails", () => {
  const etcd = OneEtcd.forAll();

  test("survives a server that dies, is paused and comes back", async () => {
    const proxy = await openProxy(etcd.server);
    const client = await clientOf(proxy);
    const received = await watch(client, "back");
    const works = () => succeeds(client.txn(put("back", "x"), { timeoutMs: SILENCE_MS }));
    await etcd.server.kill();
    await until("the connection is reset", () => proxy.openConnections === 0);
    expect(await works()).toBe(false);
    await etcd.server.start();
    await until("calls work again", works);
    await until("the watch receives events again", () => received.length > 0);

    await etcd.server.pause();
    expect(await works()).toBe(false);
    await etcd.server.resume();
    await until("calls work again", works);
    const before = received.length;
    await until(
      "the watch receives events again",
      async () => (await works()) && received.length > before,
    );
  });

  test("ends an idle client's connection to a paused server, by the client's keepalive", async () => {
    const proxy = await openProxy(etcd.server);
    const client = await clientOf(proxy);
    await watch(client, "idle");
    await etcd.server.pause();
    onTestFinished(() => etcd.server.resume());
    // A ping is sent every 5.5 s, and waits 2 s for its reply.
    await until(
      "the watch has lost its connection",
      () => proxy.openStreams("watch") === 0,
      12_000,
    );
  });
});
