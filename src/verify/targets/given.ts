import { UnsupportedError } from "../../core/errors.js";
import type { Random } from "../../core/random.js";
import { postgresKind } from "../../stores/postgres/kind.js";
import { kindOf, parseStoreUrl } from "../../stores/registry.js";
import { addressOf, type StoreUrl } from "../../stores/url.js";
import { GrpcProxy } from "../faults/grpc-proxy.js";
import { postgresConnectionKind } from "../faults/postgres-kind.js";
import { TcpProxy } from "../faults/proxy.js";
import { redisConnectionKind } from "../faults/redis-kind.js";
import { connectionKinds, type FaultKind, WORKER_KINDS } from "../runner/kinds.js";
import type { Target } from "../runner/target.js";
import type { Strikable } from "../runner/way.js";
import type { Connections } from "../traffic/protocol.js";
import { LOCKS_OF_SESSIONS } from "./postgres-faults.js";

/** A proxy to one host of the store. */
type HostProxy = Strikable & AsyncDisposable & { readonly address: string; readonly port: number };

/** The kinds of a store's connections, as far as a proxy can stand in between. */
interface Wiring {
  readonly port: number;
  readonly kinds: readonly string[];
  /** The promises that do not hold while a connection is struck. */
  readonly breaks?: Breaks;
  open(host: { readonly address: string; readonly port: number }): Promise<HostProxy>;
}

/** A user's own store: faults hit only the verifier's workers and their connections, and nothing is left behind. */
export async function givenTarget(url: string): Promise<Target> {
  const parsed = parseStoreUrl(url);
  if (parsed.scheme === "memory") {
    throw new UnsupportedError(
      "memory: lives in one process, and workers are processes: use holdfast simulate",
    );
  }
  const { cannot, fair } = await kindOf(parsed).traits(parsed);
  const wiring = wiringOf(parsed);
  // Its sessions outlast their ttls.
  const outlasts = parsed.scheme === "zookeeper";
  return {
    name: parsed.scheme,
    about: aboutOf(parsed),
    isOurs: false,
    url,
    ttlsMs: [2_000, 3_000, 5_000],
    limits: {
      fair,
      ...(outlasts
        ? { freeMs: 9_000, orphanMs: 5_000, electionMs: 5_000, healMs: 12_000 }
        : { freeMs: 5_000, electionMs: 5_000, healMs: 8_000 }),
    },
    cannot,
    // There may be a pooler in front of PostgreSQL, behind which waiters poll.
    ...(isPostgres(parsed) ? { handoverMs: 4_000 } : {}),
    kinds: [
      ...workerKinds(parsed),
      ...(wiring?.kinds ?? []).flatMap((only) => kindsOf(only, wiring!.breaks)),
    ],
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

type Breaks = Required<Pick<FaultKind, "breaks" | "because">>;

const OUT_OF_TURN: Breaks = {
  breaks: ["L4"],
  because: "a waiter that can't be notified may go to the end of the queue",
};

const isPostgres = ({ scheme }: StoreUrl): boolean => postgresKind.schemes.includes(scheme);

/** Null where a certificate or the server names an address, because a proxy can't stand in between. */
function wiringOf(url: StoreUrl): Wiring | null {
  const { scheme, options } = url;
  if (isPostgres(url) && !options.has("tls")) {
    const isOfSessions = options.has("mode");
    return {
      port: 5432,
      kinds: isOfSessions ? ["connection"] : ["connection", "commands", "subscription"],
      ...(isOfSessions ? { breaks: LOCKS_OF_SESSIONS } : {}),
      open: (host) => TcpProxy.open(host, { kindOf: postgresConnectionKind }),
    };
  }
  const isDirect = !["cluster", "sentinel", "tls"].some((one) => options.has(one));
  if (["redis", "redlock"].includes(scheme) && isDirect) {
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
    ({ name, needsClock }) => !needsClock && !(scheme === "sqlite" && name === "worker paused"),
  );

const kindsOf = (only: string, breaks: Breaks = OUT_OF_TURN): readonly FaultKind[] =>
  connectionKinds(only, only === "subscription" || only === "connection" ? breaks : {});

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
  const at = path.split("/").map(encodeURIComponent).join("/");
  const query = [...options].map(([name, value]) =>
    value === "" ? name : `${name}=${encodeURIComponent(value)}`,
  );
  return `${scheme}://${login}${hosts}${at}${query.length === 0 ? "" : `?${query.join("&")}`}`;
}
