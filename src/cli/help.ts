import type { Command } from "./command.js";
import { COMMANDS } from "./commands.js";
import { OPTIONS, type Option, type OptionName } from "./options.js";

/** One command's help, or the list of them all. */
export function helpText(command?: Command): string {
  return (command === undefined ? overview() : details(command)).join("\n\n");
}

function overview(): string[] {
  return [
    "Runs a command while holding a name, so that no two run at the same time.",
    "Usage: holdfast COMMAND [options]",
    section("Commands", columns(COMMANDS.map((one) => [shortUsage(one), one.summary]))),
    optionsSection(["help", "version"]),
    examplesSection([
      "holdfast run nightly-backup -- ./backup.sh",
      "holdfast run deploy --wait 10m -- make deploy",
      "holdfast elect scheduler -- ./scheduler",
      "holdfast ls",
      "holdfast demo",
    ]),
    "More about a command: holdfast COMMAND --help",
  ];
}

function details(command: Command): string[] {
  const usage = ["holdfast", command.name, ...argsOf(command), command.usage].join(" ").trimEnd();
  return [
    `${command.summary}.`,
    `Usage: ${usage}`,
    optionsSection([...command.options, "help"], command.abouts),
    examplesSection(command.examples),
    ...(command.more === undefined ? [] : [command.more]),
  ];
}

function shortUsage(command: Command): string {
  return [command.name, ...argsOf(command), ...(command.takesChild ? ["-- CMD"] : [])].join(" ");
}

const argsOf = ({ args, optionalArg }: Command): readonly string[] =>
  optionalArg === undefined ? args : [...args, `[${optionalArg}]`];

function optionsSection(names: readonly OptionName[], abouts: Command["abouts"] = {}): string {
  const rows = names.map((name): [string, string] => {
    const option: Option = OPTIONS[name];
    const short = option.short === undefined ? "" : `-${option.short}, `;
    const value = option.value === undefined ? "" : ` ${option.value}`;
    return [`${short}--${name}${value}`, abouts[name] ?? option.about];
  });
  return section("Options", columns(rows));
}

function examplesSection(examples: readonly string[]): string {
  return section(
    "Examples",
    examples.map((one) => `$ ${one}`),
  );
}

function section(title: string, lines: readonly string[]): string {
  return [`${title}:`, ...lines.map((line) => `  ${line}`)].join("\n");
}

/** A text of several lines goes on below itself. */
function columns(rows: readonly (readonly [string, string])[]): string[] {
  const width = Math.max(...rows.map(([left]) => left.length));
  return rows.flatMap(([left, text]) =>
    text.split("\n").map((line, at) => `${(at === 0 ? left : "").padEnd(width)}  ${line}`),
  );
}
