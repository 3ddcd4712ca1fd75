#!/usr/bin/env node
import { readFileSync } from "node:fs";
import { HoldfastError } from "../core/errors.js";
import type { Command } from "./command.js";
import { COMMANDS } from "./commands.js";
import { CliError, Exit, exitCodeOf, usage } from "./exit.js";
import { helpText } from "./help.js";
import { beforeUrl, masked, note, print, printable, typed } from "./output.js";
import { parseLine } from "./parse.js";
import { suggest } from "./suggest.js";

/** The help that a usage error refers to. */
let help = "holdfast --help";

async function main([word, ...rest]: readonly string[]): Promise<number> {
  switch (word) {
    case "-v":
    case "--version":
      print(`holdfast/${version()} ${process.platform}-${process.arch} node-${process.version}`);
      return Exit.ok;
    case "-h":
    case "--help":
    case "help":
      print(helpText(rest[0] === undefined ? undefined : commandOf(rest[0])));
      return Exit.ok;
    case undefined:
      process.stderr.write(`${helpText()}\n\n`);
      throw usage("a command is missing");
  }
  const command = commandOf(word);
  help = `holdfast ${command.name} --help`;
  const line = parseLine(command, rest);
  if (line !== "help") return command.run(line);
  print(helpText(command));
  return Exit.ok;
}

function commandOf(word: string): Command {
  const command = COMMANDS.find(({ name }) => name === word);
  if (command !== undefined) return command;
  if (!word.startsWith("-")) {
    const names = COMMANDS.map(({ name }) => name);
    throw usage(`there is no command ${typed(word)}${suggest(word, names)}`);
  }
  const option = beforeUrl(word.split("=", 1)[0]!);
  throw usage(`there is no option ${option} before the command; write options after it`);
}

function version(): string {
  const file = new URL("../../package.json", import.meta.url);
  return (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version;
}

function describeError(error: unknown): string {
  if (!(error instanceof CliError || HoldfastError.is(error))) {
    const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
    return `this is a bug in holdfast: ${text.split("\n").map(masked).join("\n")}`;
  }
  if (exitCodeOf(error) === Exit.usage) return `${masked(error.message)} (see ${help})`;
  // A CliError holds names and holders, not URLs.
  return error instanceof CliError ? printable(error.message) : masked(error.message);
}

process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  // A closed pipe, as after `holdfast ls | head`, or a terminal that is gone, is no failure. A full disk is.
  if (error.code === "EPIPE" || process.stdout.isTTY) process.exit();
  note(`can't write the output: ${masked(error.message)}`);
  process.exit(Exit.failed);
});
process.stderr.on("error", () => {});

// Node would print the error's fields too, which may hold a URL with its password, and exit with 1, as a command may.
process.on("uncaughtException", (error) => {
  note(describeError(error));
  process.exit(exitCodeOf(error));
});

// Node's warning that its SQLite is experimental would be in every mail from cron.
process.removeAllListeners("warning");
process.on("warning", (warning) => {
  if (warning.name !== "ExperimentalWarning") note(masked(String(warning)));
});

main(process.argv.slice(2))
  .catch((error: unknown) => {
    const text = describeError(error);
    if (text !== "") note(text);
    return exitCodeOf(error);
  })
  .then((code) => {
    process.exitCode = code;
    // After the output is flushed: a pipe may take it in several parts.
    process.stdout.write("", (error) => {
      // A failure has an event of its own, above.
      if (!error) process.exit();
    });
  });
