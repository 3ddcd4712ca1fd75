import { assertOpen, type Context } from "../core/context.js";
import { UnsupportedError } from "../core/errors.js";
import { emit } from "../core/events.js";
import { holderOf, type NameStatus, statusOf } from "../core/name-status.js";
import { refuseIfCannot } from "../core/settings.js";
import type { HolderInfo, NameInfo } from "../core/store.js";
import { checkName, checkNumber, checkOptions, checkText, orElse } from "../core/validate.js";
import { type Deadlock, findDeadlocks, inBoth } from "./deadlocks.js";

/** Which names `list` returns. */
export interface ListOptions {
  /** Only names that start with this. Default `""`: all names. */
  prefix?: string | undefined;
  /** At most this many names, from 1 to 100,000. Default 1,000. */
  limit?: number | undefined;
}

/** The most names that `list` returns, and that `deadlocks` looks at. */
const MOST_NAMES = 100_000;

/** Rejects with `StoreUnavailableError` after `timeoutMs`, or after `commandTimeout` if that is shorter. */
export async function inspectName(
  context: Context,
  name: string,
  timeoutMs?: number,
): Promise<NameStatus | null> {
  const { requests, settings } = context;
  assertOpen(context);
  const key = requests.toStoreName(checkName(name));
  const info = await requests.run("inspect", (store) => store.inspect(key), timeoutMs);
  return info === null ? null : statusOf({ ...info, name }, settings.tokenOffset);
}

export async function listNames(
  context: Context,
  options: ListOptions = {},
): Promise<readonly NameStatus[]> {
  assertOpen(context);
  checkOptions(options, "the options of list", ["prefix", "limit"]);
  const prefix = checkText(orElse(options.prefix, ""), "prefix", 0, 255);
  const limit = checkNumber(orElse(options.limit, 1_000), "limit", {
    min: 1,
    max: MOST_NAMES,
    integer: true,
  });
  const infos = await list(context, prefix, limit);
  return infos.map((info) => statusOf(info, context.settings.tokenOffset));
}

export async function listDeadlocks(context: Context): Promise<readonly Deadlock[]> {
  assertOpen(context);
  const { fair, store } = context.store.traits;
  if (!fair) {
    throw new UnsupportedError(
      `deadlocks can't be found on ${store}: its waiters poll, and nobody sees who waits; take several names with acquireAll, which can't deadlock`,
    );
  }
  const first = await list(context, "", MOST_NAMES);
  if ((await findDeadlocks(first)).length === 0) return [];
  // One list may mix several moments, so only what two lists agree on counts.
  const second = await list(context, "", MOST_NAMES);
  return findDeadlocks(await inBoth(first, second));
}

export async function forceRelease(
  context: Context,
  name: string,
  options: { why: string },
): Promise<readonly HolderInfo[]> {
  const { requests, settings, store } = context;
  assertOpen(context);
  refuseIfCannot(store.traits, "revoke", "forceRelease");
  checkOptions(orElse(options, { why: "" }), "the options of forceRelease", ["why"]);
  const by = { holder: settings.holder, why: checkText(options?.why, "why", 1, 255) };
  const key = requests.toStoreName(checkName(name));
  const holders = await requests.run("revoke", (inStore) => inStore.revoke(key, by));
  const revoked = holders.map((holder) => holderOf(holder, settings.tokenOffset));
  for (const { holder, token, mode } of revoked) {
    emit("revoked", settings.logger, () => {
      return { store: store.traits.store, name, mode, token, holder, by: by.holder, why: by.why };
    });
  }
  return revoked;
}

async function list(
  { requests }: Context,
  prefix: string,
  limit: number,
): Promise<readonly NameInfo[]> {
  const infos = await requests.run("list", (store) =>
    store.list(requests.toStoreName(prefix), limit),
  );
  return infos.map((info) => ({ ...info, name: requests.toUserName(info.name) }));
}
