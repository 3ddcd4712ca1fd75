#!/usr/bin/env node
import { readFileSync } from "node:fs";
import { type CAC, cac } from "cac";
import { HoldfastError } from "../core/errors.js";
import { kebab, markNumbers, type Options, unmark } from "./arguments.js";
import { define } from "./commands.js";
import { CliError, Exit, exitCodeOf, usage } from "./exit.js";
import { note, printable } from "./output.js";

/** Where a usage error points to. */
let help = "holdfast --help";

async function main(argv: readonly string[]): Promise<number> {
  const cli = cac("holdfast");
  define(cli);
  cli.help(tidyHelp);
  cli.version(version());
  cli.parse([...argv.slice(0, 2), ...markNumbers(argv.slice(2))], { run: false });
  // cac has printed these already.
  const told = cli.options["help"] || (cli.options["version"] && !cli.matchedCommandName);
  if (told) return Exit.ok;
  return runCommand(cli);
}

/** cac's own checks, with messages that say what to do. */
async function runCommand(cli: CAC): Promise<number> {
  const command = cli.matchedCommand;
  const args = cli.args.map(unmark);
  if (command !== undefined) help = `holdfast ${command.name} --help`;
  const options: Options = Object.fromEntries(
    Object.entries(cli.options).map(([name, value]) => [name, unmark(value)]),
  );
  for (const name of Object.keys(options)) {
    if (name === "--" || command?.hasOption(name) || cli.globalCommand.hasOption(name)) continue;
    throw usage(`there is no option ${name.length > 1 ? "--" : "-"}${kebab(name)}`);
  }
  if (command === undefined) {
    if (args.length > 0) throw usage(`there is no command ${JSON.stringify(args[0])}`);
    cli.outputHelp();
    return Exit.usage;
  }
  const missing = command.args[args.length];
  if (missing?.required) throw usage(`${command.name} needs a ${missing.value.toUpperCase()}`);
  if (args.length > command.args.length) {
    const hint = command.name === "run" ? "; write -- before the command to run" : "";
    throw usage(`${JSON.stringify(args[command.args.length])} is one argument too many${hint}`);
  }
  if (command.name !== "run" && (options["--"] as string[]).length > 0) {
    throw usage(`${command.name} takes nothing after --`);
  }
  return command.commandAction!(...args, options);
}

/** Without cac's list of `--help` commands and its trailing blanks. */
function tidyHelp(sections: { title?: string; body: string }[]): typeof sections {
  return sections
    .filter(({ title }) => !title?.startsWith("For more info"))
    .map((section) => ({ ...section, body: section.body.replace(/ +$/gm, "") }));
}

function version(): string {
  const file = new URL("../../package.json", import.meta.url);
  return (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version;
}

function explain(error: unknown): string {
  if (!(error instanceof CliError || HoldfastError.is(error))) {
    return `this is a bug in holdfast: ${error instanceof Error ? error.stack : error}`;
  }
  const hint = exitCodeOf(error) === Exit.usage ? ` (see ${help})` : "";
  return `${printable(error.message)}${hint}`;
}

// A reader that went away, as in `holdfast ls | head`, is no reason to fail; stderr's even less.
process.stdout.on("error", () => process.exit());
process.stderr.on("error", () => {});

// Node's word that its SQLite is experimental would come with every run, into cron's mails.
process.removeAllListeners("warning");
process.on("warning", (warning) => {
  if (warning.name !== "ExperimentalWarning") note(printable(String(warning)));
});

main(process.argv)
  .catch((error: unknown) => {
    const text = explain(error);
    if (text !== "") note(text);
    return exitCodeOf(error);
  })
  .then((code) => {
    process.exitCode = code;
    // Not before what was printed has left: a pipe takes it in turns.
    process.stdout.write("", () => process.exit());
  });
