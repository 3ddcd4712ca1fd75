import { describe, expect, test } from "vitest";
import type { Kind } from "../../../src/verify/lab/requirements.js";
import type { LabName } from "../../../src/verify/targets/index.js";
import { verifyInLab } from "../../../src/verify/targets/open.js";
import { needs } from "../../support/needs.js";

/** Each seed draws faults of several kinds where all of them can be made. */
const LABS: readonly (readonly [lab: LabName, needed: readonly Kind[], seed: number])[] = [
  // A second hard link, the machine's clock, a killed worker.
  ["sqlite", [], 377],
  // A cut connection, a moved slot, a slow command of somebody else.
  ["redis-cluster", ["redis"], 233],
  // A paused worker, a server that is killed and restarted, cut commands.
  ["redis", ["redis"], 339],
  // A compacted history, a lost reply, a killed worker.
  ["etcd", ["etcd"], 321],
  // A failover, a lost reply, a killed worker.
  ["redis-replica", ["redis"], 321],
  // A cut watch, another leader, a paused worker.
  ["etcd-cluster", ["etcd"], 130],
];

/** Two at a time: each has a machine's worth of processes. */
const pairs = LABS.flatMap((_, i) => (i % 2 === 0 ? [LABS.slice(i, i + 2)] : []));

describe.each(pairs)("every promise holds for a short run", (...pair) => {
  for (const [lab, needed, seed] of pair) {
    test.concurrent(`on ${lab}`, { timeout: 120_000 }, async (context) => {
      needs(context, ...needed);
      const { result, troubles } = await verifyInLab(lab, {
        seed,
        runs: 1,
        workers: 3,
        runMs: 3_000,
      });
      const broken = result.checks.filter(({ verdict }) => verdict === "violated");
      const faults = result.runs.flatMap((run) => run.faults.map(({ name }) => name));
      const about = `${lab}, seed ${seed}; faults: ${faults.join(", ")}; ${troubles.join("; ")}`;
      expect(
        broken.map(({ id, why }) => `${id}: ${why}`),
        about,
      ).toEqual([]);
      expect(result.outcome, about).toBe("held");
      expect(result.grants, about).toBeGreaterThan(5);
      expect(result.faults, about).toBeGreaterThan(0);
      expect(result.fenced.lost, about).toBe(0);
    });
  }
});
