import { BEFORE } from "./holdfast.mjs";

const atMost = (figure) => ({ figure, goal: `≤ 1.05 × ${BEFORE}` });

/** No kind may be slower, or larger, than before by more than 5 %. */
const GOALS = {
  uncontended: [
    { figure: "timeRatio", goal: "≤ 1.05" },
    { figure: "throughputRatio", goal: "≥ 0.95" },
  ],
  handover: [{ figure: "ratio", goal: "≤ 1.05" }],
  contention: [{ figure: "ratio", goal: "≥ 0.95" }],
  growth: [atMost("bytesPerLease"), atMost("commandsPerSecond"), atMost("blockMs")],
  recovery: [atMost("p50Ms")],
};

/** The same measurements between two builds of Holdfast alone, turn by turn in one run. */
export function againstBefore({ contestants, measurements, ...rest }) {
  const builds = [BEFORE, "Holdfast"];
  return {
    ...rest,
    contestants: contestants.filter(({ name }) => builds.includes(name)),
    measurements: measurements
      .filter(({ kind, among }) => kind in GOALS && among.includes("Holdfast"))
      .map((one) => ({
        ...one,
        among: builds,
        yardstick: BEFORE,
        otherYardstick: null,
        goals: GOALS[one.kind],
      })),
  };
}
