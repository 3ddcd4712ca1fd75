import { REVOKED_KEPT } from "../../core/store.js";
import { header, MAX_TOKEN, type Script, scriptOf } from "../redis/scripts.js";
import { LUA } from "./lua.js";

/** A raised number may be ahead of the node's clock by this: a day. */
export const MOST_AHEAD_MICROS = 86_400_000_000;
/** So many processes that no longer listen are skipped in one script. */
export const MOST_WAKES = 16;

/** The constants of the Lua files. */
const CONSTANTS = {
  /** Raised when an older Holdfast could misread what a node keeps. */
  FORMAT: 1,
  MAX_TOKEN,
  MOST_AHEAD: MOST_AHEAD_MICROS,
  MOST_WAKES,
  REVOKED_KEPT_MS: REVOKED_KEPT.ms,
  REVOKED_KEPT_MANY: REVOKED_KEPT.many,
};

const script = (name: string, ...parts: readonly string[]): Script =>
  scriptOf(name, [header(CONSTANTS), LUA.time, ...parts].join("\n"));

export const SCRIPTS = {
  join: script("join", LUA.marker, LUA.join),
  settle: script("settle", LUA.marker, LUA.settle),
  ballots: script("ballots", LUA.marker, LUA.records, LUA.ballots),
  renewals: script("renewals", LUA.records, LUA.renewals),
  inspect: script("inspect", LUA.records, LUA.inspect),
  revoke: script("revoke", LUA.records, LUA.revoke),
};
