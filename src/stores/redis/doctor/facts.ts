import type { OneServer } from "../client.js";
import { ask, refusal } from "./ask.js";

export type Info = ReadonlyMap<string, string>;

/** What a server tells about itself. A text instead: why it does not. */
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

export async function factsOf(server: OneServer): Promise<Facts> {
  const info = await ask(server, "INFO");
  const config = new Map<string, string>();
  // Several in one command are possible only since version 7.
  const answers = await Promise.all(SETTINGS.map((name) => ask(server, "CONFIG", "GET", name)));
  let refused: string | undefined;
  for (const answer of answers) {
    if ("refused" in answer) refused = refusal("CONFIG", answer);
    else for (const [key, value] of pairsOf(answer.reply)) config.set(key, value);
  }
  return {
    info: "refused" in info ? refusal("INFO", info) : fieldsOf(String(info.reply)),
    config: refused ?? config,
  };
}

export const number = (info: Info, field: string): number => Number(info.get(field) ?? Number.NaN);

export const versionOf = (info: Info): [number, number] => {
  const [major, minor] = (info.get("redis_version") ?? "").split(".").map(Number);
  return [major ?? Number.NaN, minor ?? Number.NaN];
};

/** Lines such as `role:master`. */
export function fieldsOf(text: string): Map<string, string> {
  const lines = text.split(/\r?\n/).filter((line) => /^\w+:/.test(line));
  return new Map(lines.map((line) => /^(\w+):(.*)$/.exec(line)!.slice(1) as [string, string]));
}

/** A list in turns, or an object, as the client has it. */
function pairsOf(reply: unknown): [string, string][] {
  if (!Array.isArray(reply)) {
    const entries = reply instanceof Map ? [...reply] : Object.entries(reply as object);
    return entries.map(([key, value]) => [String(key), String(value)]);
  }
  return reply.flatMap((key, i): [string, string][] =>
    i % 2 === 0 ? [[String(key), String(reply[i + 1])]] : [],
  );
}
