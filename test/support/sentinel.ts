import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Lab } from "../../src/verify/lab/lab.js";
import { freePort } from "../../src/verify/lab/ports.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { findFile } from "../../src/verify/lab/requirements.js";
import { until } from "./worker.js";

interface Sentinel {
  readonly port: number;
  stop(): Promise<void>;
}

/** Starts a sentinel that watches the primary of a replica under a name; resolves when it knows both. */
export async function startSentinel(
  lab: Lab,
  name: string,
  primary: RedisServer,
  replica: RedisServer,
): Promise<Sentinel> {
  const port = await freePort();
  const folder = join(lab.folder, "sentinel");
  mkdirSync(folder);
  const lines = [
    `port ${port}`,
    "bind 127.0.0.1",
    `dir ${folder}`,
    `sentinel monitor ${name} ${primary.address} ${primary.port} 1`,
    `sentinel down-after-milliseconds ${name} 1000`,
    `sentinel failover-timeout ${name} 5000`,
  ];
  writeFileSync(join(folder, "sentinel.conf"), `${lines.join("\n")}\n`);
  const args = [join(folder, "sentinel.conf"), "--sentinel"];
  const sentinel = spawn(findFile("redis-server")!, args, { cwd: folder, stdio: "ignore" });
  const knowsBoth = (): boolean => {
    const command = ["-p", String(port), "sentinel", "replicas", name];
    try {
      const reply = execFileSync(findFile("redis-cli")!, command, { encoding: "utf8" });
      return reply.includes(String(replica.port));
    } catch {
      return false;
    }
  };
  const stop = async (): Promise<void> => {
    sentinel.kill("SIGKILL");
    await once(sentinel, "exit");
  };
  try {
    await until("the sentinel knows both", knowsBoth, 15_000);
  } catch (error) {
    await stop();
    throw error;
  }
  return { port, stop };
}
