import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, onTestFinished } from "vitest";

const PROGRAM = fileURLToPath(new URL("incrementer.mjs", import.meta.url));
const isLong = process.env["HOLDFAST_RUNS_FACTOR"] !== undefined;
/** Rounds of each of two processes: 30 in all, and a thousand in the long run. */
const ROUNDS = isLong ? 500 : 15;

/** How long the processes of a scene may take. */
export const PAUSED_TIMEOUT_MS = isLong ? 3_600_000 : 120_000;

/** A fresh number that processes increment. */
export interface Scene {
  /** Its address, for the program. */
  readonly where: string;
  value(): number | Promise<number>;
}

/** Removed after the test. */
export function newFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-paused-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** Two processes increment; resolves to the number of accepted and refused writes, and the final value. */
async function increment(kind: string, guarding: "guarded" | "plain", open: () => Promise<Scene>) {
  const { where, value } = await open();
  const args = [PROGRAM, kind, guarding, where, `sqlite:${join(newFolder(), "locks.db")}`];
  const outputs = await Promise.all(
    ["1", "2"].map((seed) =>
      promisify(execFile)(process.execPath, [...args, String(ROUNDS), seed]),
    ),
  );
  const counts = outputs.map(({ stdout }) => JSON.parse(stdout));
  const sum = (key: string): number => counts.reduce((total, one) => total + one[key], 0);
  return { accepted: sum("accepted"), refused: sum("refused"), value: await value() };
}

/** Fails if an update is lost behind the fence, and if none is lost without it: then this would show nothing. */
export async function expectFenceSaves(kind: string, open: () => Promise<Scene>): Promise<void> {
  const [guarded, plain] = await Promise.all([
    increment(kind, "guarded", open),
    increment(kind, "plain", open),
  ]);
  expect(guarded.value, `${kind}: an update was lost behind the fence`).toBe(guarded.accepted);
  expect(guarded.refused, `${kind}: no holder was late, so this shows nothing`).not.toBe(0);
  expect(plain.value, `${kind}: nothing was lost without the fence`).toBeLessThan(plain.accepted);
}
