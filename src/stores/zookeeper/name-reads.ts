import { slices } from "../shared/slices.js";
import type { ZooKeeperClient } from "./client/client.js";
import { ZooKeeperError } from "./client/errors.js";
import type { MultiReadPart } from "./client/multi.js";
import type { Stat } from "./client/records.js";
import type { Layout } from "./layout.js";
import { type ClaimData, decodeClaimData, decodeResize, Queue, type Resize } from "./queue.js";

/** Reads in one request: their replies stay far below the longest that the client accepts. */
const READS_PER_REQUEST = 200;

/** A name's container, as one request read it. */
export interface NameNodes {
  readonly children: readonly string[];
  readonly resize: Resize | null;
  /** The version of the container's data; -1: there is no container. */
  readonly version: number;
}

export const isCode = (error: unknown, ...codes: readonly ZooKeeperError["code"][]): boolean =>
  error instanceof ZooKeeperError && codes.includes(error.code);

/** The outcome is not known, or not yet: the same session may go on. */
export const isUnanswered = (error: unknown): boolean =>
  isCode(error, "CONNECTION_LOSS", "OPERATION_TIMEOUT", "SESSION_MOVED");

export async function readName(
  client: ZooKeeperClient,
  layout: Layout,
  name: string,
): Promise<NameNodes> {
  const path = layout.name(name);
  const { results } = await client.multiRead([
    { op: "getChildren", path },
    { op: "getData", path },
  ]);
  const [children, data] = results;
  if (isCode(children, "NO_NODE") || isCode(data, "NO_NODE")) {
    return { children: [], resize: null, version: -1 };
  }
  if (children instanceof ZooKeeperError) throw children;
  if (data instanceof ZooKeeperError) throw data;
  const resize = decodeResize(data.data);
  return { children: children.children, resize, version: data.stat.version };
}

export async function readQueue(
  client: ZooKeeperClient,
  layout: Layout,
  name: string,
): Promise<Queue> {
  const { children, resize } = await readName(client, layout, name);
  return new Queue(children, resize);
}

/** Reads nodes in few requests; an error of one of them is its result. */
async function readAll(
  client: ZooKeeperClient,
  paths: readonly string[],
): Promise<({ readonly data: Buffer; readonly stat: Stat } | ZooKeeperError)[]> {
  const requests = [...slices(paths, READS_PER_REQUEST)].map((some) =>
    client.multiRead(
      some.map((path): MultiReadPart & { op: "getData" } => ({ op: "getData", path })),
    ),
  );
  return (await Promise.all(requests)).flatMap(({ results }) => results);
}

/** A claim's node with its data. */
export interface DescribedClaim extends ClaimData {
  readonly token: bigint;
  /** The session that it is under. */
  readonly owner: bigint;
  readonly version: number;
}

/** The data of these nodes of a name; undefined for those that are gone. */
export async function describeClaims(
  client: ZooKeeperClient,
  layout: Layout,
  name: string,
  nodes: readonly string[],
): Promise<(DescribedClaim | undefined)[]> {
  const container = layout.name(name);
  const results = await readAll(
    client,
    nodes.map((node) => `${container}/${node}`),
  );
  return results.map((result) => {
    if (result instanceof ZooKeeperError) {
      if (result.code === "NO_NODE") return undefined;
      throw result;
    }
    const { czxid, ephemeralOwner, version } = result.stat;
    return { ...decodeClaimData(result.data), token: czxid, owner: ephemeralOwner, version };
  });
}

/** Reads the label of the first holder into the queue: positions tell it. */
export async function describeFirstHolder(
  client: ZooKeeperClient,
  layout: Layout,
  name: string,
  queue: Queue,
): Promise<void> {
  const holder = queue.holders()[0];
  if (holder === undefined || holder.holder !== "") return;
  const [described] = await describeClaims(client, layout, name, [holder.node]);
  if (described !== undefined) queue.describe(holder.node, described);
}

/** The lowest token that holds the name: holders are in the order of their tokens, and the first ones may have gone. */
export async function readFloor(
  client: ZooKeeperClient,
  layout: Layout,
  name: string,
  queue: Queue,
  own: { readonly grantId: string; readonly token: bigint },
): Promise<bigint> {
  for (const { grantId, node } of queue.holders()) {
    if (grantId === own.grantId) break;
    const [claim] = await describeClaims(client, layout, name, [node]);
    if (claim !== undefined) return claim.token;
  }
  return own.token;
}
