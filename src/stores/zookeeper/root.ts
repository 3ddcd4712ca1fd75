import { StoreUnavailableError, UnsupportedError } from "../../core/errors.js";
import type { ZooKeeperClient } from "./client/client.js";
import { ZooKeeperError } from "./client/errors.js";
import type { CreateOptions } from "./client/operations.js";
import { isCode } from "./errors.js";
import { FORMAT, type Layout } from "./layout.js";
import { foreignDataError, parse } from "./queue.js";

/** Makes the nodes that everything is below, and refuses another format. */
export async function prepareRoot(client: ZooKeeperClient, layout: Layout): Promise<void> {
  const { root, names, sessions, revoked } = layout;
  const format = JSON.stringify({ format: FORMAT });
  let there = await readRoot(client, root);
  if (there === null) {
    await createPath(client, root, { data: format });
    there = await readRoot(client, root);
  }
  // Another client may write it at the same moment.
  if (there?.length === 0) {
    await client.setData(root, format, { version: 0 }).catch(ignore("BAD_VERSION"));
    there = await readRoot(client, root);
  }
  refuseOtherFormat(there, root);
  const folders = [names, sessions, revoked];
  await Promise.all(folders.map((path) => createUnlessThere(client, path)));
}

/** By `multiRead`, which servers before 3.6 refuse: so they are refused before anything is written. */
async function readRoot(client: ZooKeeperClient, root: string): Promise<Buffer | null> {
  const { results } = await client.multiRead([{ op: "getData", path: root }]);
  const [read] = results;
  if (isCode(read, "NO_NODE")) return null;
  if (read instanceof ZooKeeperError) throw read;
  return read.data;
}

/**
 * Makes the node with these options, and the nodes above it without data, as far as they are missing. From
 * below: the user may lack the right to create in a node far above, where nothing has to be created.
 */
export async function createPath(
  client: Pick<ZooKeeperClient, "create">,
  path: string,
  options: CreateOptions = {},
): Promise<void> {
  try {
    await createUnlessThere(client, path, options);
  } catch (error) {
    if (!isCode(error, "NO_NODE")) throw error;
    const parent = path.slice(0, path.lastIndexOf("/"));
    if (parent === "") {
      throw new StoreUnavailableError(
        `can't create ${JSON.stringify(path)} in ZooKeeper: the chroot that the client was opened with does not ` +
          "exist. Create the chroot's node, or leave the option chroot out",
        { cause: error, retryable: false },
      );
    }
    await createPath(client, parent);
    await createUnlessThere(client, path, options);
  }
}

async function createUnlessThere(
  client: Pick<ZooKeeperClient, "create">,
  path: string,
  options: CreateOptions = {},
): Promise<void> {
  await client.create(path, options).catch(ignore("NODE_EXISTS"));
}

const ignore =
  (code: ZooKeeperError["code"]) =>
  (error: unknown): void => {
    if (!isCode(error, code)) throw error;
  };

function refuseOtherFormat(data: Buffer | null, root: string): void {
  const value = data === null ? null : (parse(data) as { format?: unknown } | null);
  if (value?.format === FORMAT) return;
  if (typeof value?.format !== "number") throw foreignDataError(root);
  throw new UnsupportedError(
    `ZooKeeper's nodes are in format ${value.format}, which this version of Holdfast does not know: ` +
      "use the version that wrote it",
  );
}
