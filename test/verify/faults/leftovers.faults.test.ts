import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { expect, onTestFinished, test } from "vitest";
import { needs } from "../../support/needs.js";
import { until } from "../../support/worker.js";

const dist = fileURLToPath(new URL("../../../dist/verify", import.meta.url));

/** A lab with everything it offers, and faults in force; it closes them on request. */
const OWNER = `
  import { together } from "${dist}/fault.js";
  import { paused, powerLoss } from "${dist}/faults/server.js";
  import { FalseClock } from "${dist}/lab/clock.js";
  import { Disk } from "${dist}/lab/disk.js";
  import { Lab } from "${dist}/lab/lab.js";
  import { Network } from "${dist}/lab/network.js";

  const lab = await Lab.open();
  const network = await Network.open(lab, { hosts: 2 });
  const clock = await FalseClock.open(lab);
  const [one, other] = [await Disk.open(lab, { sizeMb: 16 }), await Disk.open(lab, { sizeMb: 16 })];
  const [a, b] = network.hosts;
  const first = await lab.redis({ site: one.site(clock.site(a)), persistence: "always" });
  const second = await lab.redis({ site: other.site(clock.site(b)), persistence: "always" });
  const faults = together(network.partition([a], [b]), clock.jump(1000), paused(second), powerLoss(one, [first]));
  await faults.inject();
  console.log(JSON.stringify({ folder: lab.folder, pid: second.pid, shared: clock.env.FAKETIME_SHARED ?? "" }));
  process.stdin.once("data", async () => {
    await faults.heal();
    await Promise.all([first.kill(), second.kill()]);
    await network.close();
    await one.close();
    await other.close();
    console.log("closed");
    process.stdin.once("data", async () => {
      await lab.close();
      process.exit();
    });
  });`;

interface Made {
  readonly folder: string;
  readonly pid: number;
  readonly shared: string;
}

const output = (program: string, ...args: string[]): string =>
  execFileSync(program, args, { encoding: "utf8" });

/** The kinds of things that the lab still has on this machine. */
function left({ folder, pid, shared }: Made): string[] {
  const network = `hf-${folder.slice(-6)}-`;
  const [semaphore = "-", memory = "-"] = shared.split(" ").map((name) => name.slice(1));
  const found: Record<string, boolean> = {
    namespaces: output("ip", "netns", "list").includes(network),
    interfaces: output("ip", "link").includes(network),
    routes: output("ip", "route").includes(network),
    mounts: readFileSync("/proc/mounts", "utf8").includes(folder),
    "loop devices": output("losetup", "-a").includes(folder),
    "shared memory": readdirSync("/dev/shm").some(
      (name) => name.endsWith(semaphore) || name.endsWith(memory),
    ),
    processes: existsSync(`/proc/${pid}`),
    folder: existsSync(folder),
  };
  return Object.keys(found).filter((what) => found[what]);
}

const TOOLS = ["redis", "network", "disk", "faketime"] as const;
const RIGHTS = ["network namespaces", "nft", "loop mounts"] as const;

async function startOwner() {
  const child = spawn(process.execPath, ["--input-type=module", "-e", OWNER], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  onTestFinished(() => void child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout });
  const [text] = (await once(lines, "line")) as [string];
  return { child, lines, made: JSON.parse(text) as Made };
}

test("faults that are closed leave nothing on the machine", async (context) => {
  needs(context, ...TOOLS, ...RIGHTS);
  const { child, lines, made } = await startOwner();
  expect(left(made)).toEqual(
    expect.arrayContaining(["namespaces", "interfaces", "mounts", "loop devices", "processes"]),
  );
  const closed = once(lines, "line");
  child.stdin.write("close");
  await closed;
  // The rest belongs to the lab.
  expect(left(made).filter((what) => !["shared memory", "folder"].includes(what))).toEqual([]);
  const exited = once(child, "exit");
  child.stdin.write("close the lab");
  expect(await exited).toEqual([0, null]);
  expect(left(made)).toEqual([]);
});

test("faults in force leave nothing on the machine when their owner is killed", async (context) => {
  needs(context, ...TOOLS, ...RIGHTS);
  const { child, made } = await startOwner();
  child.kill("SIGKILL");
  await until(`nothing is left of ${made.folder}`, () => left(made).length === 0);
});
