import { createHash } from "node:crypto";
import {
  LOCK_LIMIT,
  MOST_WAITERS,
  RENEWALS_PER_TTL,
  REVOKED_KEPT,
  WAITERS_AT_EXPIRY,
  WAITERS_SHOWN,
} from "../../core/store.js";
import { LUA } from "./lua.js";

export interface Script {
  readonly name: string;
  readonly code: string;
  readonly sha: string;
}

/** The highest number that a double holds exactly. */
export const MAX_TOKEN = Number.MAX_SAFE_INTEGER;

/** The constants of the Lua files. */
const CONSTANTS = {
  /** Raised when an older Holdfast could misread the stored state of a name. */
  FORMAT: 2,
  MAX_TOKEN,
  LOCK_LIMIT,
  MOST_WAITERS,
  WAITERS_SHOWN,
  WAITERS_AT_EXPIRY,
  RENEWALS_PER_TTL,
  REVOKED_KEPT_MS: REVOKED_KEPT.ms,
  REVOKED_KEPT_MANY: REVOKED_KEPT.many,
  /** Waiters that one script grants at most. */
  HANDOVERS_AT_ONCE: 100,
  /** A queue is compacted when it has this many more empty places than tickets. */
  EMPTY_PLACES: 64,
  /** A queue's key is kept this much longer than its tickets, so that its expiry is seldom moved. */
  QUEUE_KEPT_MS: 30_000,
  /** The longest ttl in a queue that an older Holdfast wrote, which does not record it. */
  UNKNOWN_TTL_MS: 2 ** 53,
};

export const header = (constants: Readonly<Record<string, number>>): string =>
  Object.entries(constants)
    .map(([name, value]) => `local ${name} = ${value}\n`)
    .join("");

/** Makes a script of Lua code. */
export function scriptOf(name: string, code: string): Script {
  return { name, code, sha: createHash("sha1").update(code).digest("hex") };
}

/** `micros` is the time of a script on the server's clock, in µs, once a part of the script has read it. */
const PRELUDE = `${header(CONSTANTS)}local micros\n`;
const LIBRARY = [LUA.encoding, LUA.names, LUA.replies].join("\n");

const onNames = (name: string, entry: string): Script =>
  scriptOf(name, [PRELUDE, LIBRARY, entry].join("\n"));

export const SCRIPTS = {
  // The part for free names comes first: it returns before the library's functions are made.
  requests: scriptOf("requests", [PRELUDE, LUA.freeNames, LIBRARY, LUA.requests].join("\n")),
  renewals: onNames("renewals", LUA.renewals),
  revoke: onNames("revoke", LUA.revoke),
  resize: onNames("resize", LUA.resize),
  inspect: onNames("inspect", LUA.inspect),
  scan: scriptOf("scan", LUA.scan),
  probe: scriptOf("probe", LUA.probe),
  fence: scriptOf("fence", LUA.fence),
  readRecord: scriptOf("readRecord", [LUA.records, LUA.readRecord].join("\n")),
  writeRecord: scriptOf("writeRecord", [LUA.records, LUA.writeRecord].join("\n")),
  take: scriptOf("take", LUA.take),
};

const selecting = new Map<string, Script>();

/**
 * The same script in a certain database, whatever the connection is in. A client's own SELECT proves
 * nothing: ioredis continues in database 0 when it was refused, and node-redis sends queued commands right
 * behind it. A SELECT in a script ends with the script.
 */
export function selectingScript({ name, code, sha }: Script, db: number): Script {
  const key = `${db} ${sha}`;
  let script = selecting.get(key);
  if (script === undefined) {
    script = scriptOf(name, `${header({ DATABASE: db })}${LUA.selectDatabase}${code}`);
    selecting.set(key, script);
  }
  return script;
}
