import { mkdirSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, isAbsolute, join, resolve } from "node:path";
import { StoreUnavailableError } from "../core/errors.js";
import type { Locks } from "../core/locks.js";
import type { LocksOptions } from "../core/options.js";
import { parseStoreUrl, type StoreUrl } from "../core/url.js";
import type { Options } from "./commands.js";
import { usage } from "./exit.js";
import { masked, note } from "./output.js";

export interface StoreChoice {
  readonly url: string;
  /** By --store or HOLDFAST_STORE; otherwise it is the file of this user on this machine. */
  readonly named: boolean;
}

export function chooseStore(options: Options): StoreChoice {
  const url = options.store ?? (process.env["HOLDFAST_STORE"] || undefined);
  if (url === undefined) return { url: sqliteUrl(defaultFile()), named: false };
  const wrong = whatIsWrong(url);
  if (wrong === null) return { url, named: true };
  throw usage(`${options.store === undefined ? "HOLDFAST_STORE" : "--store"}: ${wrong}`);
}

/** Before anything is opened, so that what fails later is the store and not its URL. */
function whatIsWrong(url: string): string | null {
  let parsed: StoreUrl;
  try {
    parsed = parseStoreUrl(url);
  } catch (error) {
    const isPath = /^[^:@?]+$/.test(url) && /\/|\.(db|sqlite3?)$/.test(url);
    return `${(error as Error).message}${isPath ? `; did you mean ${sqliteUrl(url)}?` : ""}`;
  }
  const { scheme, path, options } = parsed;
  if (scheme === "memory") {
    return "memory: lives in one process alone, so it would keep nobody out; use a store that others can reach, such as sqlite:/var/lib/app/locks.db";
  }
  if (scheme === "redis" || scheme === "rediss" || scheme === "etcd") return null;
  if (scheme !== "sqlite") {
    return `the store of ${scheme}: URLs is planned, but not in this version; it has sqlite:, redis: and etcd:`;
  }
  if (path === "" || path === ":memory:") {
    return "sqlite: needs a file's path, as in sqlite:/var/lib/app/locks.db";
  }
  return options.size === 0 ? null : 'sqlite: URLs have no options; write "?" in a path as %3F';
}

export async function openLocks(choice: StoreChoice, options: LocksOptions): Promise<Locks> {
  if (!choice.named) makeFolder(dirname(defaultFile()));
  const { connect } = await import("../core/connect.js");
  return connect(choice.url, options);
}

/** For a look at the store that the options name, as `holder` if that is kept: it is closed whatever happens, and never made. */
export async function withLocks<T>(
  options: Options,
  use: (locks: Locks) => Promise<T>,
  otherwise: T,
  holder?: string,
): Promise<T> {
  const choice = chooseStore(options);
  if (isMissing(choice.url)) {
    note(`${masked(describeStore(choice.url))} does not exist: nobody has used it yet`);
    return otherwise;
  }
  const locks = await openLocks(choice, { holder, ...namespaceOf(options) });
  try {
    return await use(locks);
  } finally {
    await locks.close();
  }
}

function isMissing(url: string): boolean {
  const { scheme, path } = parseStoreUrl(url);
  try {
    return scheme === "sqlite" && statSync(path, { throwIfNoEntry: false }) === undefined;
  } catch {
    // It can't be told, as in a folder that may not be searched: opening says why.
    return false;
  }
}

export function namespaceOf(options: Options): { namespace?: string } {
  const { namespace } = options;
  return namespace === undefined ? {} : { namespace };
}

/** A store for people: where it is, without user, password and options. */
export function describeStore(url: string): string {
  const { scheme, hosts, path } = parseStoreUrl(url);
  if (scheme === "sqlite") return `sqlite:${resolve(path)}`;
  const names = hosts.map(({ host, port }) => (port === null ? host : `${host}:${port}`));
  return `${scheme}://${names.join(",")}${path}`;
}

export function defaultFile(
  env: NodeJS.ProcessEnv = process.env,
  platform: NodeJS.Platform = process.platform,
  home: string = homedir(),
): string {
  return join(stateFolder(env, platform, home), "holdfast", "locks.db");
}

function stateFolder(env: NodeJS.ProcessEnv, platform: NodeJS.Platform, home: string): string {
  if (platform === "darwin") return join(home, "Library", "Application Support");
  if (platform === "win32") return env["LOCALAPPDATA"] || join(home, "AppData", "Local");
  const state = env["XDG_STATE_HOME"] ?? "";
  return isAbsolute(state) ? state : join(home, ".local", "state");
}

export function sqliteUrl(path: string): string {
  return `sqlite:${path.replace(/[%?]/g, encodeURIComponent)}`;
}

function makeFolder(folder: string): void {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
  } catch (cause) {
    throw new StoreUnavailableError(
      `can't make the folder of the default store: ${(cause as Error).message}; name a store with --store or HOLDFAST_STORE`,
      { cause, retryable: false },
    );
  }
}
