import { parseDuration } from "../core/validate.js";
import { usage } from "./exit.js";

/** What cac made of a command line. */
export type Options = Readonly<Record<string, unknown>>;

/** No argument can hold a NUL, so it marks one that cac must not read as a number. */
const MARK = "\0";
const looksNumeric = (text: string): boolean => Number.isFinite(Number(text));

/** cac turns `007` into 7, so `run --shared 007` would lock another name than `run 007`. */
export function markNumbers(argv: readonly string[]): string[] {
  const end = argv.indexOf("--");
  return argv.map((arg, at) => {
    if (end !== -1 && at >= end) return arg;
    const [, flag = "", value = ""] = /^(-[^=]*=|)(.*)$/s.exec(arg)!;
    return (flag !== "" || !arg.startsWith("-")) && looksNumeric(value)
      ? `${flag}${MARK}${value}`
      : arg;
  });
}

export function unmark<T>(value: T): T {
  return typeof value === "string" && value.startsWith(MARK) ? (value.slice(1) as T) : value;
}

/** `atLeast` as the user writes it: `at-least`. */
export const kebab = (name: string): string =>
  name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

export function textOption(options: Options, name: string): string | undefined {
  const value = options[name];
  if (value === undefined || typeof value === "string") return value;
  throw usage(
    Array.isArray(value)
      ? `--${kebab(name)} is given ${value.length} times; it may be given once`
      : `--${kebab(name)} needs a value`,
  );
}

export function flagOption(options: Options, name: string): boolean {
  const value = options[name];
  if (value === undefined || typeof value === "boolean") return value ?? false;
  throw usage(`--${kebab(name)} may be given once, and takes no value`);
}

/** Milliseconds. A number without a unit is refused: it would be read as seconds by half of the people. */
export function durationOption(
  options: Options,
  name: string,
  rule: { min: number; infinite?: boolean },
): number | undefined {
  const text = textOption(options, name);
  if (text === undefined) return undefined;
  if (rule.infinite && text === "forever") return Number.POSITIVE_INFINITY;
  if (rule.min === 0 && text === "0") return 0;
  if (!/^\d+(\.\d+)?(ms|s|m|h)$/.test(text)) {
    const also = [rule.min === 0 ? "0" : "", rule.infinite ? "forever" : ""].filter(Boolean);
    throw usage(
      `--${kebab(name)} is ${JSON.stringify(text)}; it must be a number with a unit, ` +
        `such as 250ms, 30s, 5m or 1h${also.length > 0 ? `, or ${also.join(", or ")}` : ""}`,
    );
  }
  return parseDuration(text, `--${kebab(name)}`, { min: rule.min });
}

export function choiceOption<T extends string>(
  options: Options,
  name: string,
  choices: readonly [T, ...T[]],
): T {
  const text = textOption(options, name) ?? choices[0];
  const choice = choices.find((one) => one === text);
  if (choice !== undefined) return choice;
  throw usage(`--${kebab(name)} is ${JSON.stringify(text)}; it must be ${choices.join(" or ")}`);
}
