import { randomUUID } from "node:crypto";
import { type Finding, reasonOf } from "../../../core/doctor.js";
import type { StoreUrl } from "../../../core/url.js";
import type { Connection, OneServer } from "../client.js";
import { keyOf, PREFIX } from "../keys.js";
import { replicasOf } from "../open.js";
import { ask, inTime } from "./ask.js";

/**
 * Everything that scripts and store send, in a form that changes nothing: rights are checked before
 * the server sees what is wrong with it. The test holds the list to the scripts.
 */
export const TRIED: Record<string, (own: string) => readonly string[]> = {
  TIME: () => [],
  PING: () => [],
  EVAL: () => ["return 1", "0"],
  EVALSHA: () => ["0".repeat(40), "0"],
  GET: (own) => [own],
  SET: (own) => [own, "1", "PX", "0"],
  DEL: (own) => [own],
  HSET: (own) => [own, "a", "1", "b"],
  HGET: (own) => [own, "a"],
  HDEL: (own) => [own, "a"],
  PEXPIREAT: (own) => [own, "never"],
  SCAN: () => ["0", "MATCH", `${PREFIX}*`, "COUNT", "1"],
  PUBLISH: () => [`${PREFIX}wake:doctor`, ""],
};

/** Everything is tried: that takes no right but those that are in question. */
export async function rightsOf(
  server: Pick<OneServer, "command">,
  connection: Pick<Connection, "subscribe">,
  url: StoreUrl,
): Promise<Finding> {
  const about = "rights";
  const own = keyOf(`holdfast-doctor:${randomUUID()}`);
  const tries = Object.entries(TRIED).map(([command, argsOf]) => [command, ...argsOf(own)]);
  if (replicasOf(url) > 0) tries.push(["WAIT", "0", "1"]);
  const lacking = new Map<string, string>();
  const answers = await Promise.all(tries.map((command) => ask(server, ...command)));
  for (const [i, answer] of answers.entries()) {
    const why = "refused" in answer ? lackOf(answer.refused) : null;
    if (why !== null) lacking.set(tries[i]![0]!, why);
  }
  try {
    const hear = { message: () => {}, back: () => {} };
    const listening = connection.subscribe(`${PREFIX}wake:doctor`, hear);
    (await inTime("SUBSCRIBE", listening)).close();
  } catch (error) {
    const why = lackOf(reasonOf(error));
    if (why === null) throw error;
    lacking.set("SUBSCRIBE", why);
  }
  if (lacking.size === 0) {
    return { about, level: "ok", what: "all commands that locks need are allowed" };
  }
  const user = url.user === "" ? "default" : url.user;
  const reasons = [...new Set(lacking.values())].map((why) => {
    const commands = [...lacking].filter(([, one]) => one === why).map(([command]) => command);
    return `${commands.join(", ")} (${why})`;
  });
  const grants = [...lacking].map(([command]) => `+${command.toLowerCase()}`).join(" ");
  return {
    about,
    level: "danger",
    what: `the user "${user}" may not use ${reasons.join("; ")}: steps fail, at once or halfway when somebody waits`,
    advice: [...lacking.values()].includes(NO_COMMAND)
      ? "Holdfast needs a server with all of them, and nothing in between that filters."
      : `ACL SETUSER ${user} ~${PREFIX}* &${PREFIX}* ${grants}`,
  };
}

const NO_COMMAND = "the server has no such command";

/** Null when it was not for want of a right: other findings are about that. */
function lackOf(refused: string): string | null {
  if (/unknown command/i.test(refused)) return NO_COMMAND;
  if (!/NOPERM/.test(refused)) return null;
  if (/channel/.test(refused)) return `not on channels ${PREFIX}*`;
  if (/keys/.test(refused)) return `not on keys ${PREFIX}*`;
  return "not at all";
}
