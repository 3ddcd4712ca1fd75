import { randomInt } from "node:crypto";
import { REVOKED_KEPT } from "../../core/store.js";
import type { ZooKeeperClient } from "./client/client.js";
import { ZooKeeperError } from "./client/errors.js";
import type { Layout } from "./layout.js";
import type { Link } from "./link.js";
import { foreignDataError, parse } from "./queue.js";

/** Records that a session reads when it begins, in one request. */
const MOST_SWEPT = 256;

/** The record that a grant was revoked, kept for people to see. */
export interface Revocation {
  readonly grantId: string;
  readonly holder: string;
  readonly token: string;
  readonly by: string;
  readonly why: string;
  /** By the clock of the client that revoked it. */
  readonly atMs: number;
  /** The same for all that were revoked in one step. */
  readonly step: string;
}

export const reasonOf = ({ by, why }: Pick<Revocation, "by" | "why">): string => `by ${by}: ${why}`;

/** The records of a name that are still shown, oldest first, and the version of their node; -1: there is none. */
export async function readRevocations(
  { requests, layout }: Link,
  name: string,
): Promise<{ revocations: readonly Revocation[]; version: number }> {
  const path = layout.revocations(name);
  const read = await requests.readData(path);
  if (read === null) return { revocations: [], version: -1 };
  return { revocations: decodeRevocations(read.data, path), version: read.stat.version };
}

function decodeRevocations(data: Buffer, path: string): readonly Revocation[] {
  const value = parse(data);
  if (!Array.isArray(value) || !value.every(isRevocation)) throw foreignDataError(path);
  return value.filter(({ atMs }) => Date.now() - atMs < REVOKED_KEPT.ms);
}

function isRevocation(value: unknown): value is Revocation {
  const one = (value ?? {}) as Partial<Revocation>;
  const texts = [one.grantId, one.holder, one.by, one.why, one.step];
  return (
    texts.every((text) => typeof text === "string") &&
    typeof one.token === "string" &&
    /^\d{1,20}$/.test(one.token) &&
    Number.isFinite(one.atMs)
  );
}

/** Deletes records that are too old to be shown: nodes of ZooKeeper do not expire. */
export async function sweepRevocations(client: ZooKeeperClient, layout: Layout): Promise<void> {
  const { children } = await client.getChildren(layout.revoked);
  if (children.length === 0) return;
  // Somewhere else each time, so that later sessions reach the rest.
  const from = randomInt(children.length);
  const some = [...children.slice(from), ...children.slice(0, from)].slice(0, MOST_SWEPT);
  const paths = some.map((child) => `${layout.revoked}/${child}`);
  const { results } = await client.multiRead(paths.map((path) => ({ op: "getData", path })));
  const old = results.flatMap((read, i) => {
    if (read instanceof ZooKeeperError) return [];
    const { mtimeMs, version } = read.stat;
    return Date.now() - mtimeMs > REVOKED_KEPT.ms ? [{ path: paths[i]!, version }] : [];
  });
  // Not if somebody has written one meanwhile.
  await Promise.allSettled(old.map(({ path, version }) => client.delete(path, { version })));
}
