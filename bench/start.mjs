import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { openFolder } from "./lib/folder.mjs";

export const title = "Starting";

const cwd = fileURLToPath(new URL("..", import.meta.url));
const node = (name, args) => ({ name, open: async (place) => ({ cwd, args: args(place) }) });

export const contestants = [
  node("node alone", () => ["--input-type=module", "-e", "0"]),
  node('import "holdfast"', () => ["--input-type=module", "-e", 'await import("holdfast")']),
  node("holdfast run x -- true", ({ folder }) => {
    const store = `sqlite:${join(folder, "locks.db")}`;
    return ["dist/cli/main.js", "run", "x", "--store", store, "--", "true"];
  }),
];

export const open = openFolder;

export const measurements = [
  {
    kind: "start",
    among: contestants.map(({ name }) => name),
    yardstick: "node alone",
    goals: [
      { who: 'import "holdfast"', figure: "aboveMs", goal: "< 10" },
      { who: "holdfast run x -- true", figure: "aboveMs", goal: "< 150" },
    ],
  },
];
