import { danger, type Finding, note, ok, unknown } from "../../../doctor/finding.js";
import { listFirst } from "../../../doctor/measures.js";
import { slices } from "../../shared/slices.js";
import type { Connection, OneServer } from "../connection.js";
import { FENCE_PREFIX, isBesideNames, keyOf, keysOf, nameOfKey, PREFIX } from "../keys.js";
import { SCRIPTS } from "../scripts.js";
import { describeRefusal, replyTo, sendCommand } from "./commands.js";

/** The server may have many keys of other programs: the search for ours takes no longer than this. */
const SCAN_MS = 3_000;
const SCAN_COUNT = "1000";
const MOST_NAMES = 1_000;
const NAMES_AT_ONCE = 100;
const MOST_SHOWN = 3;
/** The highest number that Lua holds exactly. */
const HIGHEST_TOKEN = 2 ** 53;

/** Counts the names that have a key, and finds keys under our prefix that are not ours or can't be read. */
export async function checkKeys(
  connection: Connection,
  servers: readonly OneServer[],
): Promise<readonly Finding[]> {
  const strangers: string[] = [];
  const broken: string[] = [];
  const names = new Set<string>();
  let complete = true;
  for (const server of servers) {
    const scanned = await scan(server);
    if (typeof scanned === "string")
      return [unknown("keys", `which keys lie under ${PREFIX}* (${scanned})`)];
    complete &&= scanned.complete;
    for (const key of scanned.keys) {
      const name = nameOfKey(key);
      if (key.includes("}n:") && keyOf(name) === key) names.add(name);
      else if (isBesideNames(key) || key.startsWith(FENCE_PREFIX)) continue;
      else if (!/^holdfast:\{\d+\}last$/.test(key)) strangers.push(key);
      else if (!(await isCounter(server, key))) broken.push(key);
    }
  }
  broken.push(...(await unreadable(connection, [...names].slice(0, MOST_NAMES))));
  const checked = names.size > MOST_NAMES ? `, ${MOST_NAMES} of them read` : "";
  const most = complete ? "" : `, of those found within ${SCAN_MS} ms`;
  const findings = [
    ok("keys", `names in use or released by force within the hour: ${names.size}${checked}${most}`),
  ];
  if (broken.length > 0) {
    findings.unshift(
      danger(
        "keys",
        `keys of another format or type, whose names can't be locked: ${listKeys(broken)}`,
        "Use the version of Holdfast that wrote them; if Holdfast did not write them, delete them.",
      ),
    );
  }
  if (strangers.length > 0) {
    findings.push(
      note(
        "keys",
        `keys under ${PREFIX}* that are not Holdfast's: ${listKeys(strangers)}`,
        "The program that wrote them may also overwrite locks: let it use another prefix.",
      ),
    );
  }
  return findings;
}

/** A text says why the server does not list its keys. */
async function scan(
  server: OneServer,
): Promise<{ keys: ReadonlySet<string>; complete: boolean } | string> {
  const keys = new Set<string>();
  const untilMs = performance.now() + SCAN_MS;
  const page = ["MATCH", `${PREFIX}*`, "COUNT", SCAN_COUNT];
  let cursor = "0";
  do {
    const sent = await sendCommand(server, "SCAN", cursor, ...page);
    if ("refused" in sent) return describeRefusal("SCAN", sent.refused);
    const [next, found] = sent.reply as [string, string[]];
    for (const key of found) keys.add(key);
    cursor = String(next);
  } while (cursor !== "0" && performance.now() < untilMs);
  return { keys, complete: cursor === "0" };
}

const listKeys = (keys: readonly string[]): string =>
  listFirst(
    keys.map((key) => JSON.stringify(key)),
    MOST_SHOWN,
  );

/** The names among these that the store's own script can't read. */
async function unreadable(connection: Connection, names: readonly string[]): Promise<string[]> {
  const found: string[] = [];
  for (const some of slices(names, NAMES_AT_ONCE)) {
    const readable = await Promise.all(some.map((name) => isReadable(connection, name)));
    found.push(...some.filter((_, at) => !readable[at]));
  }
  return found;
}

/** A missing right does not make a name unreadable: another check reports it. */
async function isReadable(connection: Connection, name: string): Promise<boolean> {
  const running = connection.run(SCRIPTS.inspect, keysOf(name), ["0"]);
  const sent = await replyTo("EVALSHA", running);
  if ("refused" in sent) return true;
  const [info] = JSON.parse(String(sent.reply)) as [{ problem?: string }];
  return !/HOLDFAST|WRONGTYPE/.test(info.problem ?? "");
}

/** Whether the key holds a number that Lua can count up. */
async function isCounter(server: OneServer, key: string): Promise<boolean> {
  const sent = await sendCommand(server, "GET", key);
  if ("refused" in sent) return !/WRONGTYPE/.test(sent.refused);
  // Null if the key was deleted after the scan.
  const text = sent.reply;
  return text === null || (/^\d+$/.test(String(text)) && Number(text) < HIGHEST_TOKEN);
}
