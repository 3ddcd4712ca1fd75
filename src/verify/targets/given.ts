import { UnsupportedError } from "../../core/errors.js";
import type { Random } from "../../core/random.js";
import { parseStoreUrl } from "../../stores/registry.js";
import { addressOf, type StoreUrl } from "../../stores/url.js";
import { GrpcProxy } from "../faults/grpc-proxy.js";
import { TcpProxy } from "../faults/proxy.js";
import { redisConnectionKind } from "../faults/redis-kind.js";
import { connectionKinds, type FaultKind, WORKER_KINDS } from "../runner/kinds.js";
import type { Target } from "../runner/target.js";
import type { Strikable } from "../runner/way.js";
import type { Connections } from "../traffic/protocol.js";

/** A proxy to one host of the store. */
type HostProxy = Strikable & AsyncDisposable & { readonly address: string; readonly port: number };

/** The kinds of a store's connections, as far as a proxy can stand in between. */
interface Wiring {
  readonly port: number;
  readonly kinds: readonly string[];
  open(host: { readonly address: string; readonly port: number }): Promise<HostProxy>;
}

/** A user's own store: faults hit only the verifier's workers and their connections, and nothing is left behind. */
export function givenTarget(url: string): Target {
  const parsed = parseStoreUrl(url);
  if (parsed.scheme === "memory") {
    throw new UnsupportedError(
      "memory: lives in one process, and workers are processes: use holdfast simulate",
    );
  }
  const wiring = wiringOf(parsed);
  // Its sessions outlast their ttls, and all leases of one have the same ttl.
  const isOfSessions = parsed.scheme === "zookeeper";
  return {
    name: parsed.scheme,
    about: aboutOf(parsed),
    isOurs: false,
    url,
    ttlsMs: [2_000, 3_000, 5_000],
    limits: isOfSessions
      ? { freeMs: 9_000, orphanMs: 5_000, electionMs: 5_000, healMs: 12_000 }
      : { freeMs: 5_000, electionMs: 5_000, healMs: 8_000 },
    oneTtl: isOfSessions,
    kinds: [...workerKinds(parsed), ...(wiring?.kinds ?? []).flatMap((only) => kindsOf(only))],
    drawConnections,
    async openWay() {
      if (wiring === null) return { url, proxies: [], close: async () => {} };
      const proxies = await Promise.all(
        parsed.hosts.map(({ host, port }) =>
          wiring.open({ address: host, port: port ?? wiring.port }),
        ),
      );
      return {
        url: throughProxies(parsed, proxies),
        proxies,
        close: async () => {
          await Promise.all(proxies.map((proxy) => proxy[Symbol.asyncDispose]()));
        },
      };
    },
    versions: async () => ({}),
    commands: async () => null,
    recover: async () => {},
    async [Symbol.asyncDispose]() {},
  };
}

/** Null where a certificate or the server names an address, because a proxy can't stand in between. */
function wiringOf({ scheme, options }: StoreUrl): Wiring | null {
  if (scheme === "redis" && !options.has("cluster") && !options.has("sentinel")) {
    return {
      port: 6379,
      kinds: ["connection", "commands", "subscription"],
      open: (host) => TcpProxy.open(host, { kindOf: redisConnectionKind }),
    };
  }
  if (scheme === "etcd" && !options.has("tls")) {
    return {
      port: 2379,
      kinds: ["connection", "calls", "watch", "keepalive"],
      open: (host) => GrpcProxy.open(host),
    };
  }
  if (scheme === "zookeeper" && !options.has("tls")) {
    return { port: 2181, kinds: ["connection"], open: (host) => TcpProxy.open(host) };
  }
  return null;
}

/** A process that stops in the middle of a transaction locks an SQLite file for everybody. */
const workerKinds = ({ scheme }: StoreUrl): readonly FaultKind[] =>
  WORKER_KINDS.filter(
    ({ name }) =>
      name !== "worker clock jumps" && !(scheme === "sqlite" && name === "worker paused"),
  );

const kindsOf = (only: string): readonly FaultKind[] =>
  only === "subscription" || only === "connection"
    ? connectionKinds(only, {
        breaks: ["L4"],
        because: "a waiter that can't be notified may go to the end of the queue",
      })
    : connectionKinds(only);

const drawConnections = (random: Random): readonly Connections[] =>
  random.unit() < 0.6 ? [{ locks: 1 }] : [{ locks: 1 }, { locks: 1 }];

function aboutOf({ scheme, hosts, path }: StoreUrl): string {
  const where =
    hosts.length === 0
      ? path
      : hosts.map(({ host, port }) => (port === null ? host : addressOf(host, port))).join(", ");
  return `your ${scheme} store at ${where}`;
}

function throughProxies(
  { scheme, user, password, path, options }: StoreUrl,
  proxies: readonly { readonly address: string; readonly port: number }[],
): string {
  const login =
    user === "" && password === ""
      ? ""
      : `${encodeURIComponent(user)}:${encodeURIComponent(password)}@`;
  const hosts = proxies.map(({ address, port }) => `${address}:${port}`).join(",");
  const query = [...options].map(([name, value]) =>
    value === "" ? name : `${name}=${encodeURIComponent(value)}`,
  );
  return `${scheme}://${login}${hosts}${path}${query.length === 0 ? "" : `?${query.join("&")}`}`;
}
