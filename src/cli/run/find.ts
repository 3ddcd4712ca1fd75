import { accessSync, constants, statSync } from "node:fs";
import { delimiter, join } from "node:path";
import { CliError, Exit } from "../exit.js";
import { quoted } from "../output.js";

type Found = "yes" | "no" | "not-executable";

/** Throws with a shell's exit code, 126 or 127, if the command can't be run. */
export function checkCommand(command: string): void {
  // Windows has its own rules for executables; there, starting the command shows it.
  if (process.platform === "win32") return;
  const found = findCommand(command, process.env["PATH"]);
  if (found === "no") throw new CliError(Exit.notFound, `${quoted(command)}: command not found`);
  if (found === "not-executable") {
    throw new CliError(
      Exit.notExecutable,
      `${quoted(command)} can't be executed: it is a folder, lies in one that you may not search, or lacks chmod +x`,
    );
  }
}

/** A command with a slash is a path; any other is looked for in PATH. */
export function findCommand(command: string, path = "/usr/bin:/bin"): Found {
  if (command === "") return "no";
  if (command.includes("/")) return look(command, "not-executable");
  const looks = path.split(delimiter).map((folder) => look(join(folder || ".", command), "no"));
  if (looks.includes("yes")) return "yes";
  return looks.includes("not-executable") ? "not-executable" : "no";
}

/** `barred` is the result for a file in a folder that this user may not search. */
function look(file: string, barred: Found): Found {
  try {
    if (!statSync(file).isFile()) return "not-executable";
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EACCES" ? barred : "no";
  }
  try {
    accessSync(file, constants.X_OK);
    return "yes";
  } catch {
    return "not-executable";
  }
}
