import { mkdirSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, isAbsolute, join } from "node:path";
import { StoreUnavailableError } from "../core/errors.js";
import type { Locks } from "../core/locks.js";
import type { LocksOptions } from "../core/options.js";
import { parseStoreUrl } from "../core/url.js";
import type { Options } from "./commands.js";
import { usage } from "./exit.js";

export interface StoreChoice {
  readonly url: string;
  /** By --store or HOLDFAST_STORE; otherwise it is the file of this user on this machine. */
  readonly named: boolean;
}

export function chooseStore(options: Options): StoreChoice {
  const url = options.store ?? (process.env["HOLDFAST_STORE"] || undefined);
  if (url === undefined) return { url: sqliteUrl(defaultFile()), named: false };
  if (parseStoreUrl(url).scheme === "memory") {
    throw usage(
      "memory: lives in one process alone, so it would keep nobody out; use a store that others can reach, such as sqlite:./locks.db",
    );
  }
  return { url, named: true };
}

export async function openLocks(choice: StoreChoice, options: LocksOptions): Promise<Locks> {
  if (!choice.named) makeFolder(dirname(defaultFile()));
  const { connect } = await import("../core/connect.js");
  return connect(choice.url, options);
}

/** Opens the store that the options name, and closes it whatever happens. */
export async function withLocks<T>(
  options: Options,
  use: (locks: Locks) => Promise<T>,
): Promise<T> {
  const locks = await openLocks(chooseStore(options), namespaceOf(options));
  try {
    return await use(locks);
  } finally {
    await locks.close();
  }
}

export function namespaceOf(options: Options): { namespace?: string } {
  const { namespace } = options;
  return namespace === undefined ? {} : { namespace };
}

/** A store for people: where it is, without user, password and options. */
export function describeStore(url: string): string {
  const { scheme, hosts, path } = parseStoreUrl(url);
  if (hosts.length === 0) return `${scheme}:${path}`;
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
