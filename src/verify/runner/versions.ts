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

/** Versions of Holdfast, of Node, and of the installed client libraries for a store of this URL. */
export function versionsHere(url: string): Readonly<Record<string, string>> {
  const require = createRequire(import.meta.url);
  const clients = (CLIENTS[url.split(":")[0]!] ?? []).flatMap((name) => {
    const files = (require.resolve.paths(name) ?? []).map((at) => join(at, name, "package.json"));
    const file = files.find((one) => existsSync(one));
    return file === undefined ? [] : [[name, versionIn(file)] as const];
  });
  return {
    holdfast: versionIn(fileURLToPath(new URL("../../../package.json", import.meta.url))),
    node: process.versions.node,
    ...Object.fromEntries(clients),
  };
}
