import { spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test } from "vitest";
import { connect, type Locks } from "../../../src/index.js";
import { LOOPBACK } from "../../../src/verify/lab/server.js";
import { Worker } from "../../../src/verify/traffic/worker.js";
import { MAIN } from "../../cli/helpers.js";
import { skipUnless } from "../../support/needs.js";
import { freshFolder, open } from "../../support/sqlite.js";
import { until } from "../../support/worker.js";

/** Longer than any of these tests: a grant within it was pushed, not found by a renewal. */
const TTL_MS = 300_000;
const PUSHED_MS = 5_000;

/** Users need no entry in passwd: a process may have any user id. */
const [ALICE, BOB, CAROL, MALLORY] = [20_001, 20_002, 20_003, 20_004] as const;
const GROUP = 20_100;

beforeEach((context) => {
  skipUnless(context, process.getuid?.() === 0, "only root can act as several users");
});

/** A process of that user, who is usually also a member of the group. */
async function startAs(uid: number, file: string, group = GROUP): Promise<Worker> {
  const setpriv = ["setpriv", `--reuid=${uid}`, `--regid=${uid}`, `--groups=${group}`];
  const site = { ...LOOPBACK, command: (argv: readonly string[]) => [...setpriv, ...argv] };
  const worker = await Worker.start({
    client: `user ${uid}`,
    url: `sqlite:${file}`,
    locks: { ttl: TTL_MS, wait: "1m" },
    site,
  });
  onTestFinished(() => worker.kill());
  return worker;
}

function folderWith(mode: number, uid: number, gid: number): string {
  const outer = freshFolder();
  chmodSync(outer, 0o755);
  const folder = join(outer, "shared");
  mkdirSync(folder);
  chownSync(folder, uid, gid);
  chmodSync(folder, mode);
  return folder;
}

function fileWith(folder: string, mode: number, uid: number, gid: number): string {
  const file = join(folder, "locks.db");
  writeFileSync(file, "");
  chownSync(file, uid, gid);
  chmodSync(file, mode);
  return file;
}

const waits = (locks: Locks, many = 1): Promise<void> =>
  until(`${many} wait`, async () => (await locks.inspect("name"))!.waiters.length === many);

async function pushed<T>(granted: Promise<T>, since = performance.now()): Promise<T> {
  const value = await granted;
  expect(performance.now() - since).toBeLessThan(PUSHED_MS);
  return value;
}

test("users of one group share a file of 0660 in a folder of 2770: handovers are pushed, dead waiters skipped", async () => {
  const folder = folderWith(0o2770, ALICE, GROUP);
  const file = fileWith(folder, 0o660, ALICE, GROUP);
  const [alice, bob, carol] = await Promise.all(
    [ALICE, BOB, CAROL].map((uid) => startAs(uid, file)),
  );
  const locks = await open(file);
  let held = await alice!.acquire("name");
  const bobs = bob!.acquire("name");
  await waits(locks);
  const carols = carol!.acquire("name");
  await waits(locks, 2);
  await alice!.release(held.op);
  held = await pushed(bobs);
  // The owner waits too, in the folder that another user has made.
  const alices = alice!.acquire("name");
  await waits(locks, 2);
  await carol!.kill();
  await carols.catch(() => {});
  await bob!.release(held.op);
  await pushed(alices);
});

test("users of one group share a file of 0660 in a folder of 0770, no matter which of them makes SQLite's log", async () => {
  const folder = folderWith(0o770, ALICE, GROUP);
  const file = fileWith(folder, 0o660, ALICE, GROUP);
  const alice = await startAs(ALICE, file);
  const held = await alice.acquire("name");
  const bob = await startAs(BOB, file);
  const bobs = bob.acquire("name");
  await alice.release(held.op);
  await bob.release((await pushed(bobs)).op);
  for (const suffix of ["-wal", "-shm"]) {
    expect(statSync(`${file}${suffix}`)).toMatchObject({ gid: GROUP, mode: 0o100660 });
  }
});

test("users of one group that open a new file together in a folder of 0770 all get in", async () => {
  for (let round = 0; round < 3; round++) {
    const folder = folderWith(0o770, ALICE, GROUP);
    const file = fileWith(folder, 0o660, ALICE, GROUP);
    const users = await Promise.all([ALICE, BOB, CAROL].map((uid) => startAs(uid, file)));
    await Promise.all(users.map(async (one) => one.release((await one.acquire("name")).op)));
    await Promise.all(users.map((one) => one.close()));
  }
});

test("a log that another user has made for itself alone: the error and the doctor say what to do", async () => {
  const folder = folderWith(0o770, ALICE, GROUP);
  const file = fileWith(folder, 0o660, ALICE, GROUP);
  await (await startAs(ALICE, file, ALICE)).acquire("name");
  await expect(startAs(BOB, file)).rejects.toThrow(
    /this user can't read and write .*-(wal|shm) .*chmod 2770/,
  );
  const doctor = spawnSync(
    "setpriv",
    [`--reuid=${BOB}`, `--regid=${BOB}`, `--groups=${GROUP}`, process.execPath, MAIN].concat([
      "doctor",
      "--store",
      `sqlite:${file}`,
    ]),
    { encoding: "utf8" },
  );
  expect(doctor.stdout).toMatch(/danger +access +this user can't read and write .*-(wal|shm)/);
  expect(doctor.stdout).toMatch(/note +access .*primary group/);
  expect(doctor.status).toBe(1);
});

test("a log that is not the group's yet, but soon is, keeps nobody of the group out", async () => {
  const folder = folderWith(0o2770, ALICE, GROUP);
  const file = fileWith(folder, 0o660, ALICE, GROUP);
  await (await startAs(ALICE, file)).acquire("name");
  chmodSync(`${file}-wal`, 0o640);
  const bob = startAs(BOB, file);
  // A process takes time to start; on a busy machine it may come too late to see this.
  setTimeout(() => chmodSync(`${file}-wal`, 0o660), 300);
  await (await bob).acquire("another name");
});

test("the doctor reports a wake folder that is not used", async () => {
  const folder = folderWith(0o770, ALICE, GROUP);
  const file = fileWith(folder, 0o600, ALICE, ALICE);
  await (await startAs(ALICE, file)).close();
  mkdirSync(`${file}-wake`);
  chownSync(`${file}-wake`, MALLORY, MALLORY);
  const doctor = spawnSync(process.execPath, [MAIN, "doctor", "--store", `sqlite:${file}`], {
    encoding: "utf8",
  });
  expect(doctor.stdout).toMatch(/note +wake folder .*50 ms/);
});

test("a user and root share the user's own file: each can notify the other", async () => {
  const folder = folderWith(0o700, ALICE, ALICE);
  const file = fileWith(folder, 0o600, ALICE, ALICE);
  const alice = await startAs(ALICE, file);
  const root = await open(file, { ttl: TTL_MS, wait: "1m" });
  const held = await alice.acquire("name");
  const roots = root.acquire("name");
  await waits(root);
  await alice.release(held.op);
  const lease = await pushed(roots);
  const alices = alice.acquire("name");
  await waits(root);
  await lease.release();
  await pushed(alices);
});

test.each(["a folder", "a link"])(
  "%s that another user has put in the wake folder's place learns nothing and loses nothing",
  async (kind) => {
    const folder = folderWith(0o1777, 0, 0);
    const file = join(folder, "locks.db");
    const prepared = kind === "a link" ? folderWith(0o755, MALLORY, MALLORY) : `${file}-wake`;
    if (kind === "a link") symlinkSync(prepared, `${file}-wake`);
    else mkdirSync(prepared);
    chownSync(prepared, MALLORY, MALLORY);
    // Writable by nobody else: only its owner shows that it can't be trusted.
    chmodSync(prepared, 0o755);
    writeFileSync(join(prepared, "abcd1234"), "kept");
    const longAgo = new Date(Date.now() - 3_600_000);
    utimesSync(join(prepared, "abcd1234"), longAgo, longAgo);
    const [one, two] = [await open(file, { ttl: TTL_MS }), await open(file, { ttl: TTL_MS })];
    const lease = await one.acquire("name");
    const waiting = two.acquire("name");
    await waits(one);
    const sinceMs = performance.now();
    await lease.release();
    // The waiters poll.
    await (await pushed(waiting, sinceMs)).release();
    expect(readdirSync(prepared)).toEqual(["abcd1234"]);
    expect(readFileSync(join(prepared, "abcd1234"), "utf8")).toBe("kept");
    expect(statSync(prepared)).toMatchObject({ uid: MALLORY, mode: 0o40755 });
  },
);

test("the members of the group of a folder that everybody may write are not trusted with the wake folder", async () => {
  const folder = folderWith(0o3777, 0, GROUP);
  const file = fileWith(folder, 0o660, ALICE, GROUP);
  // As a stranger would have made it: the group comes from the folder.
  mkdirSync(`${file}-wake`);
  chownSync(`${file}-wake`, MALLORY, GROUP);
  chmodSync(`${file}-wake`, 0o770);
  const locks = await connect(`sqlite:${file}`, { ttl: TTL_MS });
  onTestFinished(() => locks.close());
  const lease = await locks.acquire("name");
  const waiting = locks.acquire("name");
  await waits(locks);
  await lease.release();
  await (await pushed(waiting)).release();
  expect(readdirSync(`${file}-wake`)).toEqual([]);
});

test("a user that may not search the folder gets an error: the file can't be opened", async () => {
  const folder = folderWith(0o2770, ALICE, GROUP);
  const file = fileWith(folder, 0o660, ALICE, GROUP);
  await startAs(ALICE, file);
  await expect(startAs(MALLORY, file, MALLORY)).rejects.toThrow(
    /StoreUnavailableError.*can't be opened: .* may this user write there\?/s,
  );
});
