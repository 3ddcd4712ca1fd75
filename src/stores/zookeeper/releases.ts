import type { Release, ReleaseAnswer } from "../../core/store.js";
import { answerMissing, giveUp } from "../shared/sessions/releases.js";
import type { ZooKeeperContext } from "./context.js";
import { isCode } from "./errors.js";
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
  const known = context.nodes.delete(key);
  const deleted = known === "unknown" ? findAndDelete(context, release) : known;
  const outcome = await claims.whileReleasing([key], deleted);
  if (outcome === "deleted") return "released";
  return answerMissing(context, release, outcome === "repeated" && wasHeld);
}

/** A claim whose reply was lost, or that another store made, is looked for by its id. */
function findAndDelete(
  { links, layout }: ZooKeeperContext,
  { name, grantId }: Release,
): Promise<"deleted" | "missing" | "repeated"> {
  let isSent = false;
  return links.withAny(async ({ requests }) => {
    const { children, resize } = await requests.readLatest(name);
    const found = new Queue(name, children, resize).get(grantId);
    const missing = isSent ? "repeated" : "missing";
    if (found === undefined) return missing;
    isSent = true;
    try {
      await requests.delete(`${layout.name(name)}/${found.node}`);
      return "deleted";
    } catch (error) {
      if (isCode(error, "NO_NODE")) return missing;
      throw error;
    }
  });
}
