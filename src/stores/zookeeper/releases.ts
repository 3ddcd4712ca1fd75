import type { Release, ReleaseAnswer } from "../../core/store.js";
import { answerMissing, giveUp } from "../shared/sessions/releases.js";
import type { ZooKeeperContext } from "./context.js";
import { deleteNode } from "./nodes.js";
import { Queue } from "./queue.js";

/** Deletes the nodes of grants and tickets. */
export function release(
  context: ZooKeeperContext,
  releases: readonly Release[],
): Promise<readonly ReleaseAnswer[]> {
  return Promise.all(releases.map((one) => releaseOne(context, one)));
}

async function releaseOne(context: ZooKeeperContext, release: Release): Promise<ReleaseAnswer> {
  const { claims } = context;
  const wasHeld = giveUp(claims, release);
  const key = context.key(release);
  const outcome = await claims.whileReleasing([key], deleteClaim(context, key, release));
  if (outcome === "deleted") return "released";
  return answerMissing(context, release, outcome === "repeated" && wasHeld);
}

/** A claim whose reply was lost, or that another store made, is looked for by its id. */
async function deleteClaim(
  { nodes, links, layout }: ZooKeeperContext,
  key: string,
  { name, grantId }: Release,
): Promise<"deleted" | "missing" | "repeated"> {
  const outcome = await nodes.delete(key);
  if (outcome !== "unknown") return outcome;
  const link = await links.any();
  const { children, resize } = await link.requests.readLatest(name);
  const found = new Queue(children, resize).get(grantId);
  return found === undefined ? "missing" : deleteNode(link, `${layout.name(name)}/${found.node}`);
}
