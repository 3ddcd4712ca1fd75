import type { Release, ReleaseAnswer } from "../../core/store.js";
import type { ZooKeeperContext } from "./context.js";
import { deleteNode } from "./nodes.js";
import { Queue } from "./queue.js";

/** Deletes the nodes of grants and tickets. Requests are sent without waiting for replies. */
export function release(
  context: ZooKeeperContext,
  releases: readonly Release[],
): Promise<readonly ReleaseAnswer[]> {
  return Promise.all(releases.map((one) => releaseOne(context, one)));
}

async function releaseOne(context: ZooKeeperContext, release: Release): Promise<ReleaseAnswer> {
  const { claims, nodes } = context;
  const { name, grantId } = release;
  const claim = claims.get(name, grantId);
  // From here on its node is an orphan, whatever becomes of the release.
  if (claim !== undefined) claims.drop(claim);
  const key = nodes.key(name, grantId);
  const outcome = await claims.whileReleasing([key], deleteClaim(context, key, release));
  if (outcome === "deleted") return "released";
  const lost = await context.whyLost(name, grantId);
  // An attempt without a reply may have released it: that is no loss.
  if (outcome === "repeated" && claim?.state === "held" && lost.reason !== "revoked") {
    throw new Error(`the reply to the release of ${JSON.stringify(name)} was lost`);
  }
  return lost;
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
  const { children, resize } = await link.readLatest(name);
  const found = new Queue(children, resize).get(grantId);
  return found === undefined ? "missing" : deleteNode(link, `${layout.name(name)}/${found.node}`);
}
