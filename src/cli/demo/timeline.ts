/** The state of a worker from a moment on. */
export type State = "waits" | "holds" | "paused" | "lost" | "none";
/** The outcome of a write. */
export type Mark = "accepted" | "refused";

const STATE_SIGN: Record<State, string> = {
  waits: ".",
  holds: "=",
  paused: "z",
  lost: "x",
  none: " ",
};
const MARK_SIGN: Record<Mark, string> = { accepted: "W", refused: "R" };

export const LEGEND = ". waits  = holds  z paused  x paused, lease lost  W written  R refused";

/** The states of one worker over time. */
export class Lane {
  readonly name: string;
  readonly #states: { readonly atMs: number; readonly sign: string }[] = [];
  readonly #marks: { readonly atMs: number; readonly sign: string }[] = [];

  constructor(name: string) {
    this.name = name;
  }

  becomes(state: State, atMs: number): void {
    this.#states.push({ atMs, sign: STATE_SIGN[state] });
  }

  marks(mark: Mark, atMs: number): void {
    this.#marks.push({ atMs, sign: MARK_SIGN[mark] });
  }

  draw(perMs: number, width: number): string {
    const signs = Array.from({ length: width + 1 }, () => " ");
    for (const { atMs, sign } of this.#states) signs.fill(sign, Math.round(atMs * perMs));
    for (const { atMs, sign } of this.#marks) signs[Math.round(atMs * perMs)] = sign;
    return signs.join("");
  }
}

/** Draws in plain characters without moving the cursor: the same on a terminal and in a file. */
export function drawTimeline(lanes: readonly Lane[], endMs: number, width = 66): string[] {
  const perMs = width / endMs;
  let scale = "";
  for (let second = 0; second * 1_000 <= endMs; second++) {
    scale = `${scale.padEnd(Math.round(second * 1_000 * perMs))}${second}s`;
  }
  const rows = [
    `     ${scale}`,
    ...lanes.map((lane) => `  ${lane.name}  ${lane.draw(perMs, width)}`),
  ];
  return rows.map((row) => row.trimEnd());
}
