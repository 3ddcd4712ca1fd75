import { randomUUID } from "node:crypto";
import { reasonOf } from "../../../core/cause.js";
import {
  check,
  danger,
  type Finding,
  ok,
  SEE_OTHERS,
  type Trial,
} from "../../../doctor/finding.js";
import { latency } from "../../../doctor/measures.js";
import type { StoreUrl } from "../../url.js";
import type { ZooKeeperClient } from "../client/client.js";
import { isCode } from "../errors.js";
import { Layout } from "../layout.js";
import { openClientOf, openZooKeeperStore, storeOptions } from "../open.js";
import { checkAccess } from "./access.js";
import { judgeEnsemble, readMembers } from "./ensemble.js";
import { checkSession } from "./session.js";
import { readStatuses } from "./status.js";

const WRITES = 7;
const SLOW_MS = 100;

/** Reports what endangers locks on an ensemble of ZooKeeper. Uses four-letter words where servers answer them. */
export async function examineZooKeeper(url: StoreUrl, trial: Trial): Promise<readonly Finding[]> {
  const client = await openClientOf(url);
  try {
    const [statuses, members] = await Promise.all([readStatuses(url), readMembers(client)]);
    const tried = await openZooKeeperStore(url).then(trial, (error: Error) =>
      danger("trial", `nothing can be locked: ${error.message}`, SEE_OTHERS),
    );
    const layout = new Layout(storeOptions(url).root);
    return [
      ...judgeEnsemble(statuses, members, url),
      ...(await check("session", () => checkSession(statuses, url))),
      ...(await check("containers", () => checkWrites(client, layout))),
      tried,
      ...(await check("access", () => checkAccess(client, layout, url))),
    ];
  } finally {
    await client.close();
  }
}

/** Makes a container and writes to it. Every name is a container, which servers remove by themselves. */
async function checkWrites(client: ZooKeeperClient, { names }: Layout): Promise<Finding[]> {
  const path = `${names}/doctor-${randomUUID()}`;
  const tookMs: number[] = [];
  try {
    await client.create(path, { mode: "container" });
  } catch (error) {
    // Without the root, the trial has failed for a reason of its own.
    if (isCode(error, "NO_NODE")) return [];
    const advice = isCode(error, "UNIMPLEMENTED")
      ? "Use ZooKeeper 3.6 or later."
      : "Give the user all rights on Holdfast's root and on the nodes below it.";
    return [danger("containers", `no container can be made: ${reasonOf(error)}`, advice)];
  }
  for (let i = 0; i < WRITES; i++) {
    const startMs = performance.now();
    await client.setData(path, "");
    tookMs.push(performance.now() - startMs);
  }
  await client.delete(path);
  return [
    ok("containers", "the servers have containers: a name that is used no longer is removed"),
    latency("a write", tookMs, {
      fromMs: SLOW_MS,
      because: "with a slow disk or network, elections are frequent and renewals come late",
      advice: "Give ZooKeeper's log (dataLogDir) a fast disk of its own",
    }),
  ];
}
