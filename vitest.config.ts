import { configDefaults, defineConfig } from "vitest/config";
// The tests import the modules that it writes.
import "./scripts/embed-scripts.mjs";

/** Tests that kill, pause and partition real servers and processes: `npm run test:faults`. */
const FAULTS = "test/**/*.faults.test.ts";

export default defineConfig(({ mode }) => ({
  test: {
    include: mode === "faults" ? [FAULTS] : ["test/**/*.test.ts"],
    globalSetup: "test/support/templates.ts",
    exclude: mode === "faults" ? [] : [...configDefaults.exclude, FAULTS],
    // Every wait for a real server has a limit of its own; on a busy machine, many of them add up.
    testTimeout: mode === "faults" ? 120_000 : 30_000,
    hookTimeout: 30_000,
    // Two cores are enough for four: tests mostly wait for time to pass. Those with faults start more servers.
    maxWorkers: mode === "faults" ? 3 : 4,
    // Cases that run side by side mostly wait.
    maxConcurrency: 8,
  },
}));
