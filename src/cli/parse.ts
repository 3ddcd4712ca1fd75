import { parseArgs } from "node:util";
import type { Command, CommandLine } from "./command.js";
import { usage } from "./exit.js";
import { OPTIONS, type OptionName } from "./options.js";
import { beforeUrl, typed } from "./output.js";
import { suggest } from "./suggest.js";

/** Parses and checks the words after a command's name; `help` if --help is among them. */
export function parseLine(command: Command, argv: readonly string[]): CommandLine | "help" {
  const dashes = command.takesChild ? argv.indexOf("--") : -1;
  const own = dashes === -1 ? argv : argv.slice(0, dashes);
  const tokens = tokensOf(own, command.options);
  const args = tokens.filter((one) => one.kind === "positional").map((one) => one.value);
  const given = tokens
    .filter((one) => one.kind === "option")
    .map((one) => ({ ...one, typed: own[one.index]!.split("=", 1)[0]! }));
  if (given.some(({ typed }) => typed === "--help" || typed === "-h")) return "help";

  const options: Record<string, string | true> = {};
  for (const one of given) {
    const name = command.options.find((known) => known === one.name);
    if (name === undefined) {
      const hint = args.length === 0 ? dashHint(command) : "";
      const known = [...command.options, "help"].map((option) => `--${option}`);
      throw usage(`there is no option ${beforeUrl(one.typed)}${suggest(one.typed, known) || hint}`);
    }
    if (name in options) throw usage(`--${name} is given more than once`);
    options[name] = readValue(name, one);
  }
  checkArgs(command, args);
  return { args, options, child: dashes === -1 ? [] : argv.slice(dashes + 1) };
}

/** Not in strict mode, which has Node's own messages: this file makes the same checks. */
function tokensOf(args: readonly string[], names: readonly OptionName[]) {
  const types = names.map((name) => [name, { type: isFlag(name) ? "boolean" : "string" }] as const);
  const options = Object.fromEntries(types);
  return parseArgs({ args: [...args], options, strict: false, tokens: true }).tokens;
}

const isFlag = (name: OptionName): boolean => !("value" in OPTIONS[name]);

function readValue(
  name: OptionName,
  token: { value?: string | undefined; inlineValue?: boolean | undefined },
): string | true {
  if (isFlag(name)) {
    if (token.value !== undefined) throw usage(`--${name} takes no value`);
    return true;
  }
  if (token.value === undefined || (token.value === "--" && !token.inlineValue)) {
    throw usage(`--${name} needs a value`);
  }
  if (!token.inlineValue && /^-./s.test(token.value)) {
    throw usage(`--${name} needs a value; one that starts with "-" is written --${name}=VALUE`);
  }
  return token.value;
}

function checkArgs(command: Command, args: readonly string[]): void {
  const missing = command.args[args.length];
  if (missing !== undefined) throw usage(`${command.name} needs a ${missing}`);
  const extra = args[command.args.length + (command.optionalArg === undefined ? 0 : 1)];
  if (extra === undefined) return;
  const isUrl = extra.includes("://");
  const childHint = command.takesChild ? "; write -- before the command to run" : "";
  const hint = isUrl ? "; name a store with --store or --store-file" : childHint;
  throw usage(`${typed(extra)} is one argument too many${hint}`);
}

/** For a word with a dash that was perhaps meant as the name. */
function dashHint(command: Command): string {
  const [arg] = command.args;
  if (arg === undefined) return "";
  return command.takesChild
    ? `; the ${arg} for ${command.name} can't start with "-"`
    : `; a ${arg} that starts with "-" goes last, after --`;
}
