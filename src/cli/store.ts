import { mkdirSync, statSync } from "node:fs";
import { homedir, userInfo } from "node:os";
import { dirname, isAbsolute, join, resolve } from "node:path";
import { StoreUnavailableError } from "../core/errors.js";
import type { LocksOptions } from "../core/options.js";
import { DEFAULT_NAMESPACE } from "../core/settings.js";
import type { Locks } from "../locks.js";
import { kindOf, parseStoreUrl } from "../stores/registry.js";
import { addressOf } from "../stores/url.js";
import { usage } from "./exit.js";
import type { Options } from "./options.js";
import { masked, note, quoted } from "./output.js";
import { readStoreFile } from "./store-file.js";

export interface StoreChoice {
  readonly url: string;
  /** Whether an option or a variable names it; otherwise it is the file of this user on this machine. */
  readonly named: boolean;
}

/** The store of the command line, or else of the environment; null if neither names one. */
export function namedStore(options: Options): { url: string; by: string } | null {
  const { store, "store-file": file } = options;
  if (store !== undefined && file !== undefined) {
    throw usage("--store and --store-file contradict each other: both name a store; leave one out");
  }
  if (store !== undefined) return checked(store, "--store");
  if (file !== undefined) return inFile(file, "--store-file");
  const { HOLDFAST_STORE: url, HOLDFAST_STORE_FILE: path } = process.env;
  if (url && path) {
    throw usage(
      "HOLDFAST_STORE and HOLDFAST_STORE_FILE are both set, and both name a store: unset one",
    );
  }
  if (url) return checked(url, "HOLDFAST_STORE");
  return path ? inFile(path, "HOLDFAST_STORE_FILE") : null;
}

function inFile(path: string, option: string): { url: string; by: string } {
  const by = `${option} ${path}`;
  return checked(readStoreFile(path, by), by);
}

/** Before anything is opened: a wrong URL is wrong usage, not a store that can't be used. */
function checked(url: string, by: string): { url: string; by: string } {
  try {
    const parsed = parseStoreUrl(url);
    if (kindOf(parsed).form === "file") resolve(parsed.path);
    return { url, by };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).syscall === "uv_cwd") {
      throw usage(`${by}: the path is relative, and the current folder does not exist any more`);
    }
    const isPath = /^[^:@?]+$/.test(url) && /\/|\.(db|sqlite3?)$/.test(url);
    const hint = isPath ? `; did you mean ${sqliteUrl(url)}?` : "";
    throw usage(`${by}: ${(error as Error).message}${hint}`);
  }
}

/** A store that several processes can share. */
export function chooseStore(options: Options): StoreChoice {
  const store = namedStore(options);
  if (store === null) {
    return {
      // Only when it is needed: a user without a home has no default store, and may still use
      // --if-unavailable run.
      get url() {
        return sqliteUrl(defaultFile());
      },
      named: false,
    };
  }
  const parsed = parseStoreUrl(store.url);
  if (kindOf(parsed).scope !== "process") return { url: store.url, named: true };
  throw usage(
    `${store.by}: ${parsed.scheme}: lives in one process, so it would exclude no other; ` +
      "use a store that other processes can reach, such as sqlite:/var/lib/app/locks.db",
  );
}

export async function openLocks(choice: StoreChoice, options: LocksOptions): Promise<Locks> {
  if (!choice.named) makeFolder(dirname(defaultFile()));
  const { connect } = await import("../connect.js");
  return connect(choice.url, options);
}

/**
 * For commands that only look at a store: closes it at the end, and does not create it. `otherwise`
 * is the result if the store does not exist; `holder` is the label for the store's records.
 */
export async function withLocks<T>(
  options: Options,
  use: (locks: Locks) => Promise<T>,
  otherwise: T,
  holder?: string,
): Promise<T> {
  const choice = chooseStore(options);
  const problem = missing(choice.url);
  if (problem !== null) {
    note(problem);
    return otherwise;
  }
  const locks = await openLocks(choice, { holder, ...namespaceOf(options) });
  try {
    return await use(locks);
  } finally {
    await locks.close();
  }
}

/** The message about a store whose file does not exist; null for any other store. */
export function missing(url: string): string | null {
  const parsed = parseStoreUrl(url);
  if (kindOf(parsed).form !== "file") return null;
  try {
    if (statSync(parsed.path, { throwIfNoEntry: false }) !== undefined) return null;
  } catch {
    // In a folder that this user may not search, for instance: the error of opening it says why.
    return null;
  }
  return `${describeStore(url)} does not exist: no process has locked a name in it`;
}

export function namespaceOf(options: Options): { namespace?: string } {
  const { namespace } = options;
  return namespace === undefined ? {} : { namespace };
}

/** The namespace that a command looks into, for a message that it found nothing there. */
export const inNamespace = ({ namespace }: Options): string =>
  `in namespace ${quoted(namespace ?? DEFAULT_NAMESPACE)}`;

/** Where the store is, without user, password and options. */
export function describeStore(url: string): string {
  const parsed = parseStoreUrl(url);
  const { scheme, hosts, path } = parsed;
  switch (kindOf(parsed).form) {
    case "bare":
      return `${scheme}:`;
    case "file":
      return masked(`${scheme}:${resolve(path)}`);
    case "hosts": {
      const names = hosts.map(({ host, port }) => (port === null ? host : addressOf(host, port)));
      return masked(`${scheme}://${names.join(",")}${path}`);
    }
  }
}

/** The file of this user. Throws StoreUnavailableError if there is no folder for it. */
export function defaultFile(
  env: NodeJS.ProcessEnv = process.env,
  platform: NodeJS.Platform = process.platform,
  home: () => string | null = homeFolder,
): string {
  return join(stateFolder(env, platform, home), "holdfast", "locks.db");
}

/** Never relative: each current folder would then have its own locks. */
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
      "there is no folder for the default store: this user has no home folder, in HOME or in the list of users; " +
        "name a store with --store or HOLDFAST_STORE, or set HOME to an absolute path",
      { retryable: false },
    );
  }
  if (platform === "darwin") return join(folder, "Library", "Application Support");
  return platform === "win32" ? join(folder, "AppData", "Local") : join(folder, ".local", "state");
}

/** HOME, if it is an absolute path; otherwise the folder in the list of users. */
function homeFolder(): string | null {
  for (const look of [homedir, () => userInfo().homedir]) {
    try {
      const folder = look();
      if (isAbsolute(folder)) return folder;
    } catch {
      // The user's id has no entry in the list of users, as in many containers.
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
      `can't create the folder of the default store: ${(cause as Error).message}; name a store with --store or HOLDFAST_STORE`,
      { cause, retryable: false },
    );
  }
}
