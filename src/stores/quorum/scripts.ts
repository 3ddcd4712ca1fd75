import { REVOKED_KEPT } from "../../core/store.js";
import { BUCKETS } from "../redis/keys.js";
import { header, MAX_TOKEN, type Script, scriptOf } from "../redis/scripts.js";
import { LUA } from "./lua.js";

/** Raised when an older Holdfast could misread what a node keeps. */
export const FORMAT = 2;

/** A raised number may be ahead of the node's clock by this: a day. */
export const MOST_AHEAD_MICROS = 86_400_000_000;
/** The most channels to which one script publishes that a name is free, until a process receives it. */
export const MOST_WAKES = 16;

/** The constants of the Lua files. */
const CONSTANTS = {
  BUCKETS,
  FORMAT,
  MAX_TOKEN,
  MOST_AHEAD: MOST_AHEAD_MICROS,
  MOST_WAKES,
  REVOKED_KEPT_MS: REVOKED_KEPT.ms,
  REVOKED_KEPT_MANY: REVOKED_KEPT.many,
};

const script = (name: string, ...parts: readonly string[]): Script =>
  scriptOf(name, [header(CONSTANTS), LUA.caller, ...parts].join("\n"));

const { marker, records, wake } = LUA;

export const SCRIPTS = {
  join: script("join", marker, LUA.join),
  settle: script("settle", marker, LUA.settle),
  // The part for the usual requests comes first: it returns before the functions of the others are made.
  ballots: script("ballots", wake, LUA.numbers, LUA.usual, marker, records, LUA.ballots),
  renewals: script("renewals", records, LUA.renewals),
  inspect: script("inspect", records, LUA.inspect),
  revoke: script("revoke", records, wake, LUA.revoke),
};
