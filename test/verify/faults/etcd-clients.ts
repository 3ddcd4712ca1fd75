import { onTestFinished, type TestContext } from "vitest";
import { type EtcdClient, openEtcdClient } from "../../../src/stores/etcd/index.js";
import type { Op, WatchEvent } from "../../../src/stores/etcd/rpc/messages.js";
import type { WatchListener } from "../../../src/stores/etcd/rpc/watches.js";
import { GrpcProxy } from "../../../src/verify/faults/grpc-proxy.js";
import type { Target } from "../../../src/verify/faults/proxy.js";
import { endpointOf } from "../../support/etcd.js";
import { until } from "../../support/worker.js";

/** How long to wait to see that no reply comes. */
export const SILENCE_MS = 700;
/** Concurrent tests have a context of their own. */
export type Ending = Pick<TestContext, "onTestFinished">;

/** A proxy that is closed with the test. */
export async function openProxy(
  target: Target,
  context: Ending = { onTestFinished },
): Promise<GrpcProxy> {
  const proxy = await GrpcProxy.open(target);
  context.onTestFinished(() => proxy.close());
  return proxy;
}

/** A client that is closed with the test. */
export async function clientOf(
  proxy: GrpcProxy,
  context: Ending = { onTestFinished },
): Promise<EtcdClient> {
  const client = await openEtcdClient({ endpoints: [endpointOf(proxy)] });
  context.onTestFinished(() => client.close());
  return client;
}

/** Watches a key, and keeps the values that it receives. */
export async function watch(client: EtcdClient, key: string): Promise<string[]> {
  const recorder = new Recorder();
  const watching = client.watch({ key }, recorder);
  onTestFinished(() => watching.cancel());
  await until("it watches", () => recorder.timesCreated > 0);
  return recorder.received;
}

export class Recorder implements WatchListener {
  readonly received: string[] = [];
  timesCreated = 0;
  created(): void {
    this.timesCreated++;
  }
  events(events: readonly WatchEvent[]): void {
    this.received.push(...events.map(({ kv }) => String(kv.value)));
  }
  gap(): void {
    this.received.push("gap");
  }
}

export const put = (key: string, value: string): { success: Op[] } => ({
  success: [{ put: { key, value } }],
});

export const succeeds = (call: Promise<unknown>): Promise<boolean> =>
  call.then(
    () => true,
    () => false,
  );
