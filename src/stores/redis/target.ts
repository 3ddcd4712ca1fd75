import { InvalidArgumentError } from "../../core/errors.js";
import { TLS_OPTIONS, type TlsFiles, tlsFilesOf } from "../shared/tls.js";
import type { StoreUrl } from "../url.js";
import { PORT } from "./connection.js";
import { MOST_REPLICAS } from "./replicas.js";

/** How the server, cluster or sentinels of a URL are reached, for either client library. */
export interface Target {
  readonly hosts: readonly { readonly host: string; readonly port: number }[];
  readonly user: string;
  readonly password: string;
  readonly db: number;
  readonly tls: TlsFiles | null;
  readonly cluster: boolean;
  /** The name of the primary that the sentinels watch. */
  readonly sentinel: string | null;
}

const SENTINEL_PORT = 26_379;

export function replicasOf(url: StoreUrl): number {
  const text = url.options.get("replicas") ?? "0";
  const replicas = /^\d+$/.test(text) ? Number(text) : Number.NaN;
  if (!(replicas <= MOST_REPLICAS)) {
    throw new InvalidArgumentError(
      `the option replicas of a redis: URL must be a whole number from 0 to ${MOST_REPLICAS}`,
    );
  }
  if (replicas === 0 || !url.options.has("cluster")) return replicas;
  throw new InvalidArgumentError(
    "replicas can't be waited for on a cluster: leave one of the two out",
  );
}

export function targetOf(url: StoreUrl): Target {
  const sentinel = url.options.get("sentinel") ?? null;
  const cluster = url.options.has("cluster");
  if (sentinel === "" || (cluster && url.options.get("cluster") !== "")) {
    throw new InvalidArgumentError(
      "write ?cluster without a value, and ?sentinel=NAME with the name of the primary",
    );
  }
  const port = sentinel === null ? PORT : SENTINEL_PORT;
  if (cluster && sentinel !== null) {
    throw new InvalidArgumentError("a redis: URL can have cluster or sentinel, not both");
  }
  if (url.hosts.length > 1 && !cluster && sentinel === null) {
    throw new InvalidArgumentError(
      "several hosts in a redis: URL are those of a cluster (?cluster) or of sentinels (?sentinel=NAME); " +
        "independent servers that vote are redlock:",
    );
  }
  const secure = url.scheme === "rediss";
  const forTls = TLS_OPTIONS.filter((name) => url.options.has(name));
  if (!secure && forTls.length > 0) {
    throw new InvalidArgumentError(
      `a redis: URL with ${forTls.join(" and ")} needs TLS: write rediss: instead of redis:`,
    );
  }
  return {
    hosts: url.hosts.map((one) => ({ host: one.host, port: one.port ?? port })),
    user: url.user,
    password: url.password,
    db: databaseOf(url, cluster),
    tls: secure ? tlsFilesOf(url) : null,
    cluster,
    sentinel,
  };
}

function databaseOf({ scheme, path }: StoreUrl, cluster: boolean): number {
  if (path === "" || path === "/") return 0;
  const db = /^\/(\d{1,5})$/.exec(path)?.[1];
  if (db === undefined || (cluster && db !== "0")) {
    throw new InvalidArgumentError(
      cluster
        ? "a cluster has one database: leave the path of its URL out"
        : `the path of a ${scheme}: URL is the number of a database, as in ${scheme}://host:6379/2`,
    );
  }
  return Number(db);
}
