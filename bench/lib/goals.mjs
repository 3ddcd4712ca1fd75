import { format } from "./format.mjs";

const GOAL = /^(≤|≥|<|>) ([\d.,]+)(?: × (.+))?$/;
const holds = {
  "≤": (value, bound) => value <= bound,
  "<": (value, bound) => value < bound,
  "≥": (value, bound) => value >= bound,
  ">": (value, bound) => value > bound,
};

/**
 * Where a goal stands. `{ figure, goal, who = "Holdfast" }`, where `goal` is a bound in the figure's
 * unit ("≤ 5"), a multiple of another contestant's figure ("≥ 1 × proper-lockfile"), or of the best
 * of the peers ("≥ 3 × best peer"). The medians are compared.
 */
export function judge({ figure, goal, who = "Holdfast" }, { figures, columns, peers }) {
  const [, sign, number, whose] = GOAL.exec(goal) ?? [];
  const column = columns[figure];
  if (sign === undefined) throw new Error(`a goal like "≤ 5", not ${JSON.stringify(goal)}`);
  if (column === undefined) throw new Error(`no figure ${figure} to have a goal for`);
  const [heading, unit] = column;
  const of = (name) => middle(figures[name]?.[figure]);
  const value = of(who);
  const multiple = Number(number.replaceAll(",", ""));
  const bound = whose === undefined ? multiple : multiple * other(whose, sign, peers, of);
  const known = Number.isFinite(value) && Number.isFinite(bound);
  return {
    what: `${who}: ${heading}`,
    goal: whose === undefined ? `${sign} ${withUnit(number, unit)}` : goal,
    measured:
      whose === undefined
        ? format(value, unit)
        : `${format(value, unit)} against ${format(bound / multiple, unit)}`,
    verdict: !known ? "not measured" : holds[sign](value, bound) ? "met" : "missed",
  };
}

const middle = (value) => (typeof value === "object" ? value.median : (value ?? Number.NaN));
const withUnit = (number, unit) => `${number}${UNITS[unit] ?? ""}`;
const UNITS = { ms: " ms", "%": " %", bytes: " B", MB: " MB", "/s": "/s" };

function other(whose, sign, peers, of) {
  if (whose !== "best peer") return of(whose);
  const values = peers.map(of).filter((value) => !Number.isNaN(value));
  return sign === "≥" || sign === ">" ? Math.max(...values) : Math.min(...values);
}
