import type { OptionName, Options } from "./options.js";

export interface CommandLine {
  readonly args: readonly string[];
  readonly options: Options;
  /** The words after `--`, unchanged, for a command that runs another. */
  readonly child: readonly string[];
}

export interface Command {
  readonly name: string;
  readonly summary: string;
  /** All are required. */
  readonly args: readonly string[];
  /** One more argument, which may be left out. */
  readonly optionalArg?: string;
  /** The end of the usage line, after the arguments. */
  readonly usage: string;
  readonly takesChild?: true;
  /** Without `help`, which all commands have. */
  readonly options: readonly OptionName[];
  /** Help texts of options that mean something else for this command. */
  readonly abouts?: { readonly [Name in OptionName]?: string };
  readonly examples: readonly string[];
  /** The last part of the help. */
  readonly more?: string;
  /** Resolves with the exit code. */
  readonly run: (line: CommandLine) => Promise<number>;
}
