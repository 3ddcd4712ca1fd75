import { expect } from "vitest";
import type { Cluster, Server } from "../../../src/verify/lab/server.js";

/** Resolves with the leader as soon as it is another one than `old`. */
export async function newLeader<S extends Server>(cluster: Cluster<S>, old: S): Promise<S> {
  let leader = old;
  const poll = async (): Promise<string> => {
    leader = await cluster.leader();
    return leader.name;
  };
  await expect.poll(poll, { timeout: 10_000, interval: 20 }).not.toBe(old.name);
  return leader;
}
