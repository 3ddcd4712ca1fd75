import { parseDuration, YEAR_MS } from "../core/validate.js";
import type { Options, OptionsOf } from "./commands.js";
import { usage } from "./exit.js";
import { formatMs, typed } from "./output.js";

/** Milliseconds. A number without a unit is refused: it would be read as seconds by half of the people. */
export function durationOption(
  options: Options,
  name: OptionsOf<"TIME">,
  rule: { min: number; infinite?: boolean },
): number | undefined {
  const text = options[name];
  if (text === undefined) return undefined;
  if (rule.infinite && text === "forever") return Number.POSITIVE_INFINITY;
  if (rule.min === 0 && text === "0") return 0;
  try {
    return parseDuration(text, `--${name}`, { min: rule.min });
  } catch {
    const min = rule.min === 0 ? "0" : formatMs(rule.min);
    throw usage(
      `--${name} is ${typed(text)}; it must be a number with a unit, such as 250ms, 30s, 5m or 1h, ` +
        `from ${min} to ${YEAR_MS / 3_600_000}h${rule.infinite ? ", or forever" : ""}`,
    );
  }
}

export function numberOption(
  options: Options,
  name: OptionsOf<"N">,
  rule: { min: number; max: number },
): number | undefined {
  const text = options[name];
  if (text === undefined) return undefined;
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= rule.min && value <= rule.max) return value;
  throw usage(
    `--${name} is ${typed(text)}; it must be a whole number from ${rule.min} to ${rule.max}`,
  );
}

/** The first choice is the default. */
export function choiceOption<T extends string>(
  options: Options,
  name: OptionsOf<string>,
  choices: readonly [T, ...T[]],
): T {
  const text = options[name] ?? choices[0];
  const choice = choices.find((one) => one === text);
  if (choice !== undefined) return choice;
  throw usage(`--${name} is ${typed(text)}; it must be ${choices.join(" or ")}`);
}
