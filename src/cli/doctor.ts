import { existsSync } from "node:fs";
import { dirname } from "node:path";
import { refuseOptions } from "../core/connect.js";
import type { Doctor, Finding, Level } from "../core/doctor.js";
import { parseStoreUrl, type Scheme } from "../core/url.js";
import type { Options } from "./commands.js";
import { Exit, usage } from "./exit.js";
import { jsonText, masked, print, printable, style } from "./output.js";
import { defaultFile, describeStore, namedStore, sqliteUrl } from "./store.js";

/** Each store has its own; loaded only when asked for. */
const DOCTORS: Partial<Record<Scheme, Doctor>> = {
  memory: async () => [
    {
      about: "scope",
      level: "note",
      what: "memory: lives in one process alone: it keeps out nobody in another, and ends with it",
      advice:
        "Use a store that all can reach, such as sqlite: on one machine, redis: or etcd: on many.",
    },
  ],
  sqlite: async (url) => {
    refuseOptions(url, []);
    return (await import("../stores/sqlite/doctor.js")).examineSqlite(url);
  },
  redis: examineRedis,
  rediss: examineRedis,
  etcd: async (url) => {
    const { ETCD_OPTIONS } = await import("../stores/etcd/open.js");
    refuseOptions(url, ETCD_OPTIONS);
    return (await import("../stores/etcd/doctor.js")).examineEtcd(url);
  },
};

async function examineRedis(...[url]: Parameters<Doctor>): ReturnType<Doctor> {
  const { REDIS_OPTIONS } = await import("../stores/redis/open.js");
  refuseOptions(url, REDIS_OPTIONS);
  return (await import("../stores/redis/doctor/index.js")).examineRedis(url);
}

const UNUSED: Finding = { about: "file", level: "note", what: "nobody has used it yet" };

/** The worst first. */
const LEVELS = {
  danger: "red",
  unknown: "yellow",
  note: "cyan",
  ok: "green",
} as const satisfies Record<Level, string>;

export async function doctor(options: Options): Promise<number> {
  const named = namedStore(options)?.url;
  const url = named ?? sqliteUrl(defaultFile());
  const parsed = parseStoreUrl(url);
  const examine = DOCTORS[parsed.scheme];
  if (examine === undefined) {
    throw usage(
      `the store of ${parsed.scheme}: URLs is planned, but not in this version; ` +
        `it has ${Object.keys(DOCTORS)
          .map((scheme) => `${scheme}:`)
          .join(" ")}`,
    );
  }
  // The folder of the default file is made by who first locks a name.
  const unused = named === undefined && !existsSync(dirname(defaultFile()));
  const found = unused ? [UNUSED] : await examine(parsed);
  const findings = (Object.keys(LEVELS) as Level[]).flatMap((level) =>
    found.filter((finding) => finding.level === level),
  );
  const store = masked(describeStore(url));
  print(
    options.json
      ? jsonText({ store, findings })
      : [store, ...findings.flatMap(linesOf), `\n${summary(findings)}`].join("\n"),
  );
  return findings.some(({ level }) => level === "danger") ? Exit.failed : Exit.ok;
}

const COLUMNS = { level: 9, about: 13 };

function linesOf({ level, about, what, advice, where }: Finding): string[] {
  const label = style(process.stdout, LEVELS[level], level.padEnd(COLUMNS.level));
  const place = where === undefined ? "" : `${where}: `;
  const line = `  ${label}${about.padEnd(COLUMNS.about)}${printable(`${place}${what}`)}`;
  if (advice === undefined) return [line];
  return [line, `${" ".repeat(2 + COLUMNS.level + COLUMNS.about)}${printable(advice)}`];
}

function summary(findings: readonly Finding[]): string {
  const count = (level: Level): number => findings.filter((one) => one.level === level).length;
  const [dangers, unknown] = [count("danger"), count("unknown")];
  const first =
    dangers === 0 ? "No danger was found." : `${dangers} danger${dangers === 1 ? "" : "s"}.`;
  return unknown === 0 ? first : `${first} ${unknown} could not be looked at.`;
}
