import { randomUUID } from "node:crypto";
import { reasonOf } from "../../../core/cause.js";
import { danger, type Finding, ok } from "../../../doctor/finding.js";
import type { StoreUrl } from "../../url.js";
import type { Connection, OneServer } from "../connection.js";
import { keyOf, PREFIX } from "../keys.js";
import { replicasOf } from "../target.js";
import { sendCommand, withTimeout } from "./commands.js";

/** The rights that a store needs on a server. */
export interface NeededRights {
  /** All keys and channels of the store begin with it. */
  readonly prefix: string;
  /** The key of a name. */
  keyOf(name: string): string;
  /**
   * Every command that scripts and store send, in this order, in a form that leaves nothing behind: the
   * server checks rights before arguments. A test compares the list with the scripts.
   */
  readonly commands: Record<string, (own: string) => readonly string[]>;
}

/** The commands of all stores on Redis. */
export const COMMON_COMMANDS: NeededRights["commands"] = {
  TIME: () => [],
  PING: () => [],
  EVAL: () => ["return 1", "0"],
  EVALSHA: () => ["0".repeat(40), "0"],
  GET: (own) => [own],
  SET: (own) => [own, "1", "PX", "0"],
  DEL: (own) => [own],
  SCAN: () => ["0", "MATCH", "holdfast*", "COUNT", "1"],
};

export const TRIED: NeededRights["commands"] = {
  ...COMMON_COMMANDS,
  HSET: (own) => [own, "a", "1", "b"],
  HGET: (own) => [own, "a"],
  HDEL: (own) => [own, "a"],
  PEXPIREAT: (own) => [own, "never"],
  HMGET: (own) => [own, "a"],
  GETEX: (own) => [own],
  PTTL: (own) => [own],
  PEXPIRE: (own) => [own, "never"],
  PUBLISH: () => [`${PREFIX}wake:doctor`, ""],
};

const OF_REDIS_STORE: NeededRights = { prefix: PREFIX, keyOf, commands: TRIED };

/** Sends every command, because ACL commands would need a right of their own. */
export async function checkRights(
  server: Pick<OneServer, "command">,
  connection: Pick<Connection, "subscribe">,
  url: StoreUrl,
  { prefix, keyOf, commands }: NeededRights = OF_REDIS_STORE,
): Promise<Finding> {
  const own = keyOf(`holdfast-doctor:${randomUUID()}`);
  const tries = Object.entries(commands).map(([command, argsOf]) => [command, ...argsOf(own)]);
  if (replicasOf(url) > 0) tries.push(["WAIT", "0", "1"]);
  const lacking = new Map<string, string>();
  const replies = await Promise.all(tries.map((command) => sendCommand(server, ...command)));
  for (const [i, sent] of replies.entries()) {
    const lack = "refused" in sent ? describeLack(sent.refused, prefix) : null;
    if (lack !== null) lacking.set(tries[i]![0]!, lack);
  }
  try {
    const subscribing = connection.subscribe(`${prefix}wake:doctor`, { message: () => {} });
    (await withTimeout("SUBSCRIBE", subscribing)).close();
  } catch (error) {
    const lack = describeLack(reasonOf(error), prefix);
    if (lack === null) throw error;
    lacking.set("SUBSCRIBE", lack);
  }
  if (lacking.size === 0) return ok("rights", "all commands that locks need are allowed");
  const user = url.user === "" ? "default" : url.user;
  const reasons = [...new Set(lacking.values())].map((lack) => {
    const refused = [...lacking].filter(([, one]) => one === lack).map(([command]) => command);
    return `${refused.join(", ")} (${lack})`;
  });
  const grants = [...lacking.keys()].map((command) => `+${command.toLowerCase()}`).join(" ");
  return danger(
    "rights",
    `the user "${user}" may not use ${reasons.join("; ")}: requests fail, some at once and some only when a name has waiters`,
    [...lacking.values()].includes(NO_COMMAND)
      ? "Holdfast needs a server that has all of them, and no proxy that filters commands."
      : `ACL SETUSER ${user} ~${prefix}* &${prefix}* ${grants}`,
  );
}

const NO_COMMAND = "the server has no such command";

/** Null: the refusal is not about rights, and other checks report it. */
function describeLack(refused: string, prefix: string): string | null {
  if (/unknown command/i.test(refused)) return NO_COMMAND;
  if (!/NOPERM/.test(refused)) return null;
  if (/channel/.test(refused)) return `not on channels ${prefix}*`;
  if (/keys/.test(refused)) return `not on keys ${prefix}*`;
  return "not at all";
}
