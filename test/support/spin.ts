import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);

/** A core each; others test at the same time. */
const MOST_AT_ONCE = 2;
let running = 0;
const queue: (() => void)[] = [];

export type Model = "lease-and-fence" | "quorum-ballot";

export const pathOf = (model: Model): string =>
  fileURLToPath(new URL(`../../spec/${model}.pml`, import.meta.url));

/** A rule that a model can leave out, and a check that fails then. */
export interface LeftOut {
  readonly rule: string;
  readonly check: string;
}

/** The model's own list of rules: `#define RULE 1 /* where it stands, CHECK CHECK`. */
export function rulesOf(model: Model): readonly LeftOut[] {
  const lines = readFileSync(pathOf(model), "utf8").matchAll(
    /^#define (\w+) +\d+ +\/\*(.*)\*\/$/gm,
  );
  return [...lines].flatMap(([, rule, comment]) =>
    [...comment!.matchAll(/\b[A-Z_]{4,}\b/g)].map(([check]) => ({ rule: rule!, check })),
  );
}

export interface Verdict {
  /** Whether every state within the bounds was visited. */
  readonly exhaustive: boolean;
  readonly states: number;
  /** The assertion that failed; null if none did. */
  readonly violation: string | null;
  /** The steps that lead to the violation, in the model's own words. */
  readonly story: readonly string[];
}

/** Visits every state of a model. */
export function verify(model: Model, ...flags: readonly string[]): Promise<Verdict> {
  return search(model, flags, ["-O1"]);
}

/** Looks for the shortest way to a violation. */
export function refute(model: Model, ...flags: readonly string[]): Promise<Verdict> {
  return search(model, flags, ["-O0", "-DBFS"]);
}

async function search(
  model: Model,
  flags: readonly string[],
  compilerFlags: readonly string[],
): Promise<Verdict> {
  if (running === MOST_AT_ONCE) await new Promise<void>((resolve) => queue.push(resolve));
  else running++;
  const folder = mkdtempSync(join(tmpdir(), "holdfast-spin-"));
  const options = { cwd: folder, timeout: 240_000 };
  try {
    await run("spin", [...flags, "-a", pathOf(model)], options);
    const compile = ["-w", "-DSAFETY", "-DMEMLIM=1000", ...compilerFlags, "-o", "pan", "pan.c"];
    await run("gcc", compile, options);
    const { stdout } = await run(join(folder, "pan"), ["-m100000", "-w22"], options);
    const [, states] = /^ *(\d+) states, stored/m.exec(stdout)!;
    const violation = /assertion violated (.*) \(at depth/.exec(stdout)?.[1] ?? null;
    // Any other failure, of a bound or of the model, is no verdict.
    const errors = Number(/errors: (\d+)/.exec(stdout)?.[1]);
    if (errors !== (violation === null ? 0 : 1)) throw new Error(stdout);
    const exhaustive =
      violation === null && !/Search not completed|max search depth|reached -DMEMLIM/.test(stdout);
    const trail = join(folder, `${model}.pml.trail`);
    const replay = ["-t", "-T", "-k", trail, pathOf(model)];
    const story =
      violation === null ? "" : (await run("spin", [...flags, ...replay], options)).stdout;
    return {
      exhaustive,
      states: Number(states),
      violation,
      story: story
        .split("\n")
        .filter((line) => /^(\d+: )?(grant|client|node|the store)\b/.test(line)),
    };
  } finally {
    rmSync(folder, { recursive: true, force: true });
    const next = queue.shift();
    if (next === undefined) running--;
    else next();
  }
}
