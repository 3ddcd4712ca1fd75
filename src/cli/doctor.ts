import { existsSync } from "node:fs";
import { dirname } from "node:path";
import { type Finding, type Level, note } from "../doctor/finding.js";
import { examineStore } from "../examine.js";
import { loadDriver } from "../stores/sqlite/driver.js";
import { Exit } from "./exit.js";
import type { Options } from "./options.js";
import { jsonText, print, printable, style } from "./output.js";
import { defaultFile, describeStore, namedStore, sqliteUrl } from "./store.js";

/** The worst first. */
const LEVELS = {
  danger: "red",
  unknown: "yellow",
  note: "cyan",
  ok: "green",
} as const satisfies Record<Level, string>;

const UNUSED = note("file", "it does not exist yet: no process has locked a name in it");

export async function doctor(options: Options): Promise<number> {
  const named = namedStore(options)?.url;
  const url = named ?? sqliteUrl(defaultFile());
  // The first `run` or `elect` makes the folder of the default file.
  const unused = named === undefined && !existsSync(dirname(defaultFile()));
  if (unused) await loadDriver();
  const found = unused ? [UNUSED] : await examineStore(url);
  const findings = (Object.keys(LEVELS) as Level[]).flatMap((level) =>
    found.filter((finding) => finding.level === level),
  );
  const store = describeStore(url);
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
  return unknown === 0 ? first : `${first} ${unknown} could not be checked.`;
}
