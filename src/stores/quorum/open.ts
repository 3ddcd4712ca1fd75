import { HoldfastError, InvalidArgumentError } from "../../core/errors.js";
import { parseDuration } from "../../core/validate.js";
import { connectionOf } from "../redis/client.js";
import { toConnectError } from "../redis/connect-errors.js";
import { type ConnectingClient, startClient } from "../redis/open-client.js";
import { type Target, targetOf } from "../redis/target.js";
import { switchedTlsOf } from "../shared/tls.js";
import type { StoreUrl } from "../url.js";
import { majorityOf } from "./ballot.js";
import { unavailable } from "./errors.js";
import { checkNodeCount, MAX_TTL_LIMITS, type QuorumStore, quorumStore } from "./index.js";

/** Nodes that connect later than a majority by more than this join the quorum afterwards. */
const LATE_MS = 250;

/** Opens a store as soon as a majority of the nodes has answered. */
export async function openQuorumStore(url: StoreUrl): Promise<QuorumStore> {
  const targets = targetsOf(url);
  const maxTtl = maxTtlOf(url);
  const starting = await Promise.all(targets.map(startClient));
  const store = quorumStore(
    starting.map(({ client }) => client),
    { closeClients: true, ...(maxTtl === undefined ? {} : { maxTtl }) },
  );
  try {
    await majorityConnects(starting, targets, url);
    await store.setUp();
  } catch (error) {
    await Promise.all(starting.map(({ disconnect }) => disconnect()));
    throw error;
  }
  for (const { client } of starting) connectionOf(client).unref();
  return store;
}

/** Checks the parts of a URL that its form and options don't show. */
export function checkQuorumUrl(url: StoreUrl): void {
  targetsOf(url);
  maxTtlOf(url);
}

/** One target for each node. */
export function targetsOf(url: StoreUrl): Target[] {
  const { host: first } = url.hosts[0]!;
  checkNodeCount(url.hosts.length, `a redlock: URL names its nodes, as in redlock://${first},b,c`);
  const addresses = url.hosts.map(({ host, port }) => `${host}:${port}`);
  const twice = addresses.find((one, i) => addresses.indexOf(one) !== i);
  if (twice !== undefined) throw new InvalidArgumentError("the redlock: URL names a node twice");
  const tls = switchedTlsOf(url);
  return url.hosts.map((host) => ({
    ...targetOf({ ...url, scheme: "redis", hosts: [host], options: new Map() }),
    tls,
  }));
}

export function maxTtlOf({ options }: StoreUrl): number | undefined {
  const text = options.get("maxTtl");
  return text === undefined ? undefined : parseDuration(text, "maxTtl", MAX_TTL_LIMITS);
}

async function majorityConnects(
  starting: readonly ConnectingClient[],
  targets: readonly Target[],
  url: StoreUrl,
): Promise<void> {
  const failures: Error[] = [];
  const majority = majorityOf(starting.length);
  let connected = 0;
  await new Promise<void>((resolve) => {
    const settled = (): void => {
      if (connected + failures.length === starting.length) resolve();
      else if (connected === majority) setTimeout(resolve, LATE_MS);
    };
    for (const [i, one] of starting.entries()) {
      one.connected.then(
        () => {
          connected++;
          settled();
        },
        async (error: unknown) => {
          const node = { ...url, hosts: [url.hosts[i]!] };
          const failure = HoldfastError.is(error)
            ? error
            : await toConnectError(error, targets[i]!, node);
          failures.push(failure as Error);
          settled();
        },
      );
    }
  });
  if (connected < majority) throw unavailable(starting.length, failures);
}
