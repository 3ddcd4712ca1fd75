import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { connect } from "../../src/connect.js";
import { makeFolder, until } from "../cli/helpers.js";

const EXAMPLE = fileURLToPath(new URL("../../examples/metrics.mjs", import.meta.url));
const WORKERS = 3;

it("examples/metrics.mjs goes on after each of its workers has lost a lease", async (context) => {
  const store = `sqlite:${join(makeFolder(), "locks.db")}`;
  const example = spawn(process.execPath, [EXAMPLE], {
    env: { ...process.env, PORT: "0", HOLDFAST_STORE: store },
    stdio: ["ignore", "pipe", "pipe"],
  });
  context.onTestFinished(() => void example.kill("SIGKILL"));
  const [line] = await once(example.stdout, "data");
  const url = /http:\S+/.exec(String(line))![0];
  let losses = 0;
  example.stderr.on("data", (text) => {
    losses += String(text).trim().split("\n").length;
  });
  const granted = async (): Promise<number> => {
    const text = await (await fetch(url)).text();
    return Number(/^holdfast_acquires_total\{.*outcome="granted"\} (\d+)$/m.exec(text)?.[1] ?? 0);
  };
  const locks = await connect(store);
  context.onTestFinished(() => locks.close());
  await until("each worker has lost a lease", async () => {
    await Promise.all(
      ["order:0", "order:1"].map((name) => locks.forceRelease(name, { why: "test" })),
    );
    await sleep(50);
    return losses >= WORKERS;
  });
  const before = await granted();
  await until("they work on", async () => (await granted()) > before + WORKERS);
  example.kill("SIGTERM");
  expect(await once(example, "exit")).toEqual([0, null]);
});
