import { accessSync, constants, statSync } from "node:fs";
import { delimiter, join } from "node:path";
import { CliError, Exit } from "../exit.js";
import { quoted } from "../output.js";

type Found = "yes" | "no" | "not-executable";

/** Fails as a shell would, 126 or 127, if the command can't be run. */
export function checkCommand(command: string): void {
  // Windows has rules of its own for what is executable; there the start itself tells.
  if (process.platform === "win32") return;
  const found = findCommand(command, process.env["PATH"]);
  if (found === "no") throw new CliError(Exit.notFound, `${quoted(command)}: command not found`);
  if (found === "not-executable") {
    throw new CliError(
      Exit.notExecutable,
      `${quoted(command)} is there but can't be executed (a folder, or chmod +x is missing)`,
    );
  }
}

/** A command with a slash is a path; any other is looked for in PATH. */
export function findCommand(command: string, path = "/usr/bin:/bin"): Found {
  if (command === "") return "no";
  if (command.includes("/")) return look(command);
  const looks = path.split(delimiter).map((folder) => look(join(folder || ".", command)));
  if (looks.includes("yes")) return "yes";
  return looks.includes("not-executable") ? "not-executable" : "no";
}

function look(file: string): Found {
  const stat = statSync(file, { throwIfNoEntry: false, bigint: false });
  if (stat === undefined) return "no";
  if (!stat.isFile()) return "not-executable";
  try {
    accessSync(file, constants.X_OK);
    return "yes";
  } catch {
    return "not-executable";
  }
}
