import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const REDIS = ["ioredis", "redis"];
/** The client libraries that workers may use. The client of ZooKeeper is our own. */
const CLIENTS: Readonly<Record<string, readonly string[]>> = {
  redis: REDIS,
  rediss: REDIS,
  redlock: REDIS,
  postgres: ["pg"],
  postgresql: ["pg"],
  etcd: ["@grpc/grpc-js"],
};

const versionIn = (file: string): string =>
  (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version;

const clientsOf = (url: string): readonly string[] => CLIENTS[url.split(":")[0]!] ?? [];

/** The package.json of an installed client library. */
function packageOf(name: string): string | undefined {
  const folders = createRequire(import.meta.url).resolve.paths(name) ?? [];
  return folders.map((at) => join(at, name, "package.json")).find((one) => existsSync(one));
}

/** The advice if no client library for a store of this URL is installed; null if one is. */
export function lackingClient(url: string, find = packageOf): string | null {
  const [first, ...others] = clientsOf(url);
  if (first === undefined || [first, ...others].some((name) => find(name) !== undefined)) {
    return null;
  }
  const or = others.length === 0 ? "" : ` (or ${others.join(", ")})`;
  return `the workers need a client library of this store: npm install ${first}${or}`;
}

/** Versions of Holdfast, of Node, and of the installed client libraries for a store of this URL. */
export function versionsHere(url: string): Readonly<Record<string, string>> {
  const clients = clientsOf(url).flatMap((name) => {
    const file = packageOf(name);
    return file === undefined ? [] : [[name, versionIn(file)] as const];
  });
  return {
    holdfast: versionIn(fileURLToPath(new URL("../../../package.json", import.meta.url))),
    node: process.versions.node,
    ...Object.fromEntries(clients),
  };
}
