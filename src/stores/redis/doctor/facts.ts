import { type OneServer, pairsOf } from "../connection.js";
import { describeRefusal, sendCommand } from "./commands.js";

export type Info = ReadonlyMap<string, string>;

/** The server's own information; where it is not available, a text with the reason. */
export interface Facts {
  readonly info: Info | string;
  readonly config: Info | string;
}

const SETTINGS = [
  "appendfsync",
  "save",
  "no-appendfsync-on-rewrite",
  "stop-writes-on-bgsave-error",
  "bind",
  "protected-mode",
];

export async function readFacts(server: OneServer): Promise<Facts> {
  const info = await sendCommand(server, "INFO");
  const config = new Map<string, string>();
  // Versions before 7 take one setting per command.
  const replies = await Promise.all(
    SETTINGS.map((name) => sendCommand(server, "CONFIG", "GET", name)),
  );
  let refusal: string | undefined;
  for (const one of replies) {
    if ("refused" in one) refusal = describeRefusal("CONFIG", one.refused);
    else for (const [key, value] of pairsOf(one.reply)) config.set(key, value);
  }
  return {
    info:
      "refused" in info ? describeRefusal("INFO", info.refused) : parseFields(String(info.reply)),
    config: refusal ?? config,
  };
}

export const numberOf = (info: Info, field: string): number =>
  Number(info.get(field) ?? Number.NaN);

export const versionOf = (info: Info): [number, number] => {
  const [major, minor] = (info.get("redis_version") ?? "").split(".").map(Number);
  return [major ?? Number.NaN, minor ?? Number.NaN];
};

/** Parses lines such as `role:master`. */
export const parseFields = (text: string): Map<string, string> =>
  new Map([...text.matchAll(/^(\w+):(.*?)\r?$/gm)].map(([, key, value]) => [key!, value!]));
