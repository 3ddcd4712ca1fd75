import { mkdirSync, statSync } from "node:fs";
import { homedir, userInfo } from "node:os";
import { dirname, isAbsolute, join, resolve } from "node:path";
import { StoreUnavailableError } from "../core/errors.js";
import type { Locks } from "../core/locks.js";
import type { LocksOptions } from "../core/options.js";
import { parseStoreUrl, type StoreUrl } from "../core/url.js";
import type { Options } from "./commands.js";
import { usage } from "./exit.js";
import { masked, note } from "./output.js";
import { readStoreFile } from "./store-file.js";

export interface StoreChoice {
  readonly url: string;
  /** By an option or a variable; otherwise it is the file of this user on this machine. */
  readonly named: boolean;
}

/** What names the store, the command line before the environment; null when nothing does. */
export function namedStore(options: Options): { url: string; by: string } | null {
  const { store, "store-file": file } = options;
  if (store !== undefined && file !== undefined) {
    throw usage("--store and --store-file contradict each other: both name a store");
  }
  if (store !== undefined) return { url: store, by: "--store" };
  if (file !== undefined) return inFile(file, "--store-file");
  const { HOLDFAST_STORE: url, HOLDFAST_STORE_FILE: path } = process.env;
  if (url && path) {
    throw usage(
      "HOLDFAST_STORE and HOLDFAST_STORE_FILE are both set, and both name a store: unset one",
    );
  }
  if (url) return { url, by: "HOLDFAST_STORE" };
  return path ? inFile(path, "HOLDFAST_STORE_FILE") : null;
}

function inFile(path: string, option: string): { url: string; by: string } {
  const by = `${option} ${path}`;
  return { url: readStoreFile(path, by), by };
}

export function chooseStore(options: Options): StoreChoice {
  const store = namedStore(options);
  if (store === null) {
    return {
      // Only when it is needed: for a user without a home, that the store can't be used is not
      // yet the end.
      get url() {
        return sqliteUrl(defaultFile());
      },
      named: false,
    };
  }
  const wrong = whatIsWrong(store.url);
  if (wrong === null) return { url: store.url, named: true };
  throw usage(`${store.by}: ${wrong}`);
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

/** Throws StoreUnavailableError when there is no place for it. */
export function defaultFile(
  env: NodeJS.ProcessEnv = process.env,
  platform: NodeJS.Platform = process.platform,
  home: () => string | null = homeFolder,
): string {
  return join(stateFolder(env, platform, home), "holdfast", "locks.db");
}

/** Never relative: a file in the current folder would be another one in every folder. */
function stateFolder(
  env: NodeJS.ProcessEnv,
  platform: NodeJS.Platform,
  home: () => string | null,
): string {
  const variable = platform === "win32" ? "LOCALAPPDATA" : "XDG_STATE_HOME";
  const state = platform === "darwin" ? "" : (env[variable] ?? "");
  if (isAbsolute(state)) return state;
  const folder = home();
  if (folder === null) {
    throw new StoreUnavailableError(
      "there is no place for the default store: this user has no home folder, in HOME or in the list of users; " +
        "name a store with --store or HOLDFAST_STORE, or set HOME to an absolute path",
      { retryable: false },
    );
  }
  if (platform === "darwin") return join(folder, "Library", "Application Support");
  return platform === "win32" ? join(folder, "AppData", "Local") : join(folder, ".local", "state");
}

/** As HOME says, if that is an absolute path; otherwise as the list of users does. */
function homeFolder(): string | null {
  for (const look of [homedir, () => userInfo().homedir]) {
    try {
      const folder = look();
      if (isAbsolute(folder)) return folder;
    } catch {
      // An id without an entry in the list of users, as in many containers.
    }
  }
  return null;
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
