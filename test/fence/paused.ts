import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Pool } from "pg";
import { expect, onTestFinished } from "vitest";
import { openEtcdClient } from "../../src/stores/etcd/rpc/client.js";
import { Lab } from "../../src/verify/lab/lab.js";

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

/** Closed after the test. */
export async function openLab(): Promise<Lab> {
  const lab = await Lab.open();
  onTestFinished(() => lab.close());
  return lab;
}

export async function inPostgres(): Promise<Scene> {
  const { url: where } = await (await openLab()).postgres();
  const pool = new Pool({ connectionString: where });
  onTestFinished(() => pool.end());
  await pool.query("CREATE TABLE counter (id integer, value integer, fence_token bigint)");
  await pool.query("INSERT INTO counter VALUES (1, 0)");
  return {
    where,
    value: async () => (await pool.query("SELECT value FROM counter")).rows[0].value,
  };
}

export async function inEtcd(): Promise<Scene> {
  const [server] = (await (await openLab()).etcd()).servers;
  const where = `${server!.address}:${server!.port}`;
  const client = await openEtcdClient({ endpoints: [where] });
  onTestFinished(() => client.close());
  const key = "number";
  await client.txn({ success: [{ put: { key, value: "0" } }] });
  return { where, value: async () => Number((await client.range({ key })).kvs[0]!.value) };
}

/**
 * Runs the program once for each list of arguments, and resolves to what they print. They begin together, when all of
 * them are ready: on a busy machine, the first could otherwise be done before the last has started.
 */
export async function runTogether(all: readonly (readonly string[])[]): Promise<string[]> {
  const children = all.map((args) => {
    const stdio = ["pipe", "pipe", "inherit"] as const;
    const child = spawn(process.execPath, [PROGRAM, ...args], { stdio: [...stdio] });
    onTestFinished(() => void child.kill("SIGKILL"));
    return child;
  });
  await Promise.all(children.map((child) => once(child.stdout!, "data")));
  const outputs = children.map(async (child, i) => {
    let output = "";
    child.stdout!.on("data", (part) => {
      output += part;
    });
    const [code] = await once(child, "close");
    expect(code, `${all[i]!.join(" ")} failed`).toBe(0);
    return output;
  });
  for (const child of children) child.stdin!.write(".");
  return Promise.all(outputs);
}

/** Two processes increment; resolves to the number of accepted and refused writes, and the final value. */
async function increment(kind: string, guarding: "guarded" | "plain", open: () => Promise<Scene>) {
  const { where, value } = await open();
  const args = [kind, guarding, where, `sqlite:${join(newFolder(), "locks.db")}`, String(ROUNDS)];
  const outputs = await runTogether(["1", "2"].map((seed) => [...args, seed]));
  const counts = outputs.map((output) => JSON.parse(output));
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
