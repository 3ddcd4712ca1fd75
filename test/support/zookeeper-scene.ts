import { expect } from "vitest";
import { Layout } from "../../src/stores/zookeeper/layout.js";
import type { Limits } from "../../src/verify/check/check.js";
import type { Target } from "../../src/verify/faults/proxy.js";
import type { ServerCluster } from "../../src/verify/lab/cluster.js";
import type { ZooKeeperServer } from "../../src/verify/lab/zookeeper.js";
import { ZooKeeperClient } from "../../src/zookeeper/index.js";
import { ClusterScene, LIMITS, type SceneOptions } from "./scene.js";
import { until } from "./worker.js";

export type Ensemble = ServerCluster<ZooKeeperServer>;

/** Short where a test waits for a loss … */
const TTL_MS = 2_000;
/** … and longer where an election, and an attempt that meets silence, have to fit in. */
export const SAFE_MS = 5_000;
/** The lab's ticks are so short that sessions of these ttls would be above the limit. */
export const CONFIG = { maxSessionTimeout: "60000", maxClientCnxns: "0" };

export const addressOf = ({ address, port }: Target): string => `${address}:${port}`;

/** Resolves when this server has this role, or any at all. */
export const serves = (server: ZooKeeperServer, mode = "(leader|follower)"): Promise<void> =>
  until(
    `${server.name} serves`,
    async () => new RegExp(`Mode: ${mode}`).test(await server.ask("srvr").catch(() => "")),
    20_000,
  );

/** Workers on an ensemble. */
export class Scene extends ClusterScene<ZooKeeperServer> {
  /** Starts a worker on each of these servers; null leaves the server to chance. */
  static async open(
    ensemble: Ensemble,
    servers: readonly (ZooKeeperServer | null)[],
    options: SceneOptions = {},
  ): Promise<Scene> {
    for (const one of ensemble.servers) await serves(one);
    const scene = new Scene(ensemble);
    await scene.start(servers, { ttl: TTL_MS, ...options });
    return scene;
  }

  /** A session outlives its ttl by 0.7 of it, and sessions end at a tick. */
  protected override get limits(): Partial<Limits> {
    return { ...LIMITS, freeMs: LIMITS.freeMs + SAFE_MS };
  }

  protected override async nothingIsLeft(): Promise<void> {
    const client = await ZooKeeperClient.open({ servers: this.cluster.servers.map(addressOf) });
    const { names, sessions } = new Layout();
    const isDone = async (): Promise<boolean> => {
      await client.sync("/");
      return (await client.getChildren(sessions)).children.length === 0;
    };
    try {
      // A session that was lost expires by itself.
      await until("no session is left", isDone, 20_000);
      // The servers remove empty containers later.
      for (const name of (await client.getChildren(names)).children) {
        const { children } = await client.getChildren(`${names}/${name}`).catch((error) => {
          if (error.code === "NO_NODE") return { children: [] };
          throw error;
        });
        expect(children, name).toEqual([]);
      }
    } finally {
      await client.close();
    }
  }
}
