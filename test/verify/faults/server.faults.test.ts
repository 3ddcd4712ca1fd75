import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { Process } from "../../../src/verify/faults/process.js";
import { killed, paused, restarted, wiped } from "../../../src/verify/faults/server.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { Client } from "./client.js";

describeWith(["redis"], "a server of the lab", () => {
  let lab: Lab;
  let redis: RedisServer;
  beforeAll(async () => {
    lab = await Lab.open();
    redis = await lab.redis({ persistence: "always" });
  });
  afterAll(() => lab?.close());

  test("that is paused accepts connections and does not reply; healed, it replies to earlier requests", async () => {
    const fault = paused(redis);
    expect(fault.name).toBe("redis-1 paused");
    await fault.inject();
    const client = await Client.open(redis);
    const reply = client.request("incr", "paused");
    expect(await within(reply, 100)).toBe("nothing");
    await fault.heal();
    expect(await reply).toBe(":1");
  });

  test("that is killed refuses connections; healed, it is back on the same port with its data", async () => {
    await redis.cli("set", "kept", "1");
    const { port } = redis;
    const fault = killed(redis);
    await fault.inject();
    await expect(Client.open(redis)).rejects.toMatchObject({ code: "ECONNREFUSED" });
    await fault.heal();
    expect(redis.port).toBe(port);
    expect(await redis.cli("get", "kept")).toBe("1");
  });

  test("that is killed while it is paused runs again when both are healed", async () => {
    const [pause, kill] = [paused(redis), killed(redis)];
    await pause.inject();
    await kill.inject();
    await kill.heal();
    await pause.heal();
    expect(redis.state).toBe("running");
    expect(await redis.cli("ping")).toBe("PONG");
  });

  test("that is restarted has lost its connections and kept its data; wiped, the data is gone too", async () => {
    await redis.cli("set", "kept", "2");
    const client = await Client.open(redis);
    await restarted(redis).inject();
    await until("the client has noticed", () => client.ended !== null);
    expect(await redis.cli("get", "kept")).toBe("2");
    const wipe = wiped(redis);
    await wipe.inject();
    await wipe.heal();
    expect(await redis.cli("exists", "kept")).toBe("0");
  });
});

describe("any process", () => {
  function counter(): ChildProcess {
    const code = `setInterval(() => process.stdout.write("."), 1)`;
    const child = spawn(process.execPath, ["-e", code], { stdio: ["ignore", "pipe", "inherit"] });
    onTestFinished(() => void child.kill("SIGKILL"));
    return child;
  }
  const threads = (pid: number): string[] =>
    readdirSync(`/proc/${pid}/task`).map(
      (id) => /\) (\w)/.exec(readFileSync(`/proc/${pid}/task/${id}/stat`, "utf8"))![1]!,
    );

  test("that is paused stands still with every thread, until healed", async () => {
    const child = counter();
    await once(child.stdout!, "data");
    const holder = new Process("holder", child.pid!);
    const fault = paused(holder);
    await fault.inject();
    expect(threads(child.pid!).length).toBeGreaterThan(4);
    expect(new Set(threads(child.pid!))).toEqual(new Set("T"));
    expect(holder.state).toBe("paused");
    child.stdout!.read();
    await fault.heal();
    await once(child.stdout!, "data");
    expect(holder.state).toBe("running");
  });

  test("that is killed is gone, healing does not bring it back, and a dead one can't be paused", async () => {
    const child = counter();
    const exited = once(child, "exit");
    const fault = killed(new Process("holder", child.pid!));
    await fault.inject();
    expect(await exited).toEqual([null, "SIGKILL"]);
    await fault.heal();
    const again = new Process("holder", child.pid!);
    expect(again.state).toBe("down");
    await expect(paused(again).inject()).rejects.toThrow("holder is dead");
  });
});

const within = (promise: Promise<unknown>, ms: number): Promise<unknown> =>
  Promise.race([promise, new Promise((resolve) => setTimeout(resolve, ms, "nothing"))]);
