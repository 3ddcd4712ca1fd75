import type { Finding } from "../../../core/doctor.js";
import type { Connection, OneServer } from "../client.js";
import { isQueue, keyOf, keysOf as keysOfName, nameOfKey, PREFIX } from "../keys.js";
import { SCRIPTS } from "../scripts.js";
import { answerOf, ask, refusal } from "./ask.js";

/** Others' keys may be many: no more time than this is spent on finding ours. */
const SCAN_MS = 3_000;
const SCAN_COUNT = "1000";
const MOST_NAMES = 1_000;
const NAMES_AT_ONCE = 100;
const MOST_SHOWN = 3;
/** Beyond it, Lua's numbers have gaps. */
const HIGHEST_TOKEN = 2 ** 53;

/** What lies under our prefix: names in use, and what is not ours or can't be read. */
export async function keysOf(
  connection: Connection,
  servers: readonly OneServer[],
): Promise<readonly Finding[]> {
  const about = "keys";
  const strangers: string[] = [];
  const broken: string[] = [];
  const names = new Set<string>();
  let complete = true;
  for (const server of servers) {
    const { keys, end } = await scan(server);
    if (typeof end === "string") {
      const what = `what lies under ${PREFIX}* (${end})`;
      return [{ about, level: "unknown", what }];
    }
    complete &&= end;
    for (const key of keys) {
      const name = nameOfKey(key);
      if (key.includes("}n:") && keyOf(name) === key) names.add(name);
      else if (isQueue(key)) continue;
      else if (!/^holdfast:\{\d+\}last$/.test(key)) strangers.push(key);
      else if (!(await isCounter(server, key))) broken.push(key);
    }
  }
  const looked = [...names].slice(0, MOST_NAMES);
  for (let i = 0; i < looked.length; i += NAMES_AT_ONCE) {
    const some = looked.slice(i, i + NAMES_AT_ONCE);
    const readable = await Promise.all(some.map((name) => isReadable(connection, name)));
    broken.push(...some.filter((_, at) => !readable[at]));
  }
  const most = complete ? "" : ", of those found in time";
  const checked = names.size > MOST_NAMES ? `, ${MOST_NAMES} of them looked at` : "";
  const findings: Finding[] = [
    { about, level: "ok", what: `names in use: ${names.size}${checked}${most}` },
  ];
  if (broken.length > 0) {
    findings.unshift({
      about,
      level: "danger",
      what: `kept in another format or type, so that they can't be locked: ${listed(broken)}`,
      advice: "Use the version of Holdfast that wrote them; if it was none, delete them.",
    });
  }
  if (strangers.length > 0) {
    findings.push({
      about,
      level: "note",
      what: `keys under ${PREFIX}* that are not Holdfast's: ${listed(strangers)}`,
      advice: "Whoever wrote them may also write over locks: use another prefix there.",
    });
  }
  return findings;
}

/** `end`: whether it came to it; a text: why not at all. */
async function scan(
  server: OneServer,
): Promise<{ keys: ReadonlySet<string>; end: boolean | string }> {
  const keys = new Set<string>();
  const until = performance.now() + SCAN_MS;
  let cursor = "0";
  do {
    const answer = await ask(server, "SCAN", cursor, "MATCH", `${PREFIX}*`, "COUNT", SCAN_COUNT);
    if ("refused" in answer) return { keys, end: refusal("SCAN", answer) };
    const [next, page] = answer.reply as [string, string[]];
    for (const key of page) keys.add(key);
    cursor = String(next);
  } while (cursor !== "0" && performance.now() < until);
  return { keys, end: cursor === "0" };
}

const listed = (keys: readonly string[]): string => {
  const shown = keys.slice(0, MOST_SHOWN).map((key) => JSON.stringify(key));
  const more = keys.length - shown.length;
  return `${shown.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
};

/** By the store's own script. What it may not do is another finding. */
async function isReadable(connection: Connection, name: string): Promise<boolean> {
  const keys = keysOfName(name);
  const answer = await answerOf("EVALSHA", connection.run(SCRIPTS.inspect, keys, ["0"]));
  if ("refused" in answer) return true;
  const [info] = JSON.parse(String(answer.reply)) as [{ problem?: string }];
  return !/HOLDFAST|WRONGTYPE/.test(info.problem ?? "");
}

/** A number within what Lua can count. */
async function isCounter(server: OneServer, key: string): Promise<boolean> {
  const answer = await ask(server, "GET", key);
  if ("refused" in answer) return !/WRONGTYPE/.test(answer.refused);
  // It may have run out by now.
  const text = answer.reply;
  return text === null || (/^\d+$/.test(String(text)) && Number(text) < HIGHEST_TOKEN);
}
