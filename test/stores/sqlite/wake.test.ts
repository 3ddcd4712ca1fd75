import fs, {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { connect as connectSocket, createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import { type Claim, type ClaimAnswer, LOCK_LIMIT, type Push } from "../../../src/core/store.js";
import type { Lease, Locks } from "../../../src/index.js";
import { type SqliteStore, sqliteStore } from "../../../src/stores/sqlite/index.js";
import { WakeFolder } from "../../../src/stores/sqlite/wake-folder.js";
import { skipUnless } from "../../support/needs.js";
import { freshFile, freshFolder, open, rawConnection } from "../../support/sqlite.js";
import { until } from "../../support/worker.js";

/** Longer than any of these tests: a grant within it was pushed, not found by a renewal. */
const TTL = "5m";

const waits = (locks: Locks, many = 1): Promise<void> =>
  until(`${many} wait`, async () => (await locks.inspect("name"))!.waiters.length === many);

test("where no socket can be opened, waiters poll", async () => {
  const file = freshFile();
  writeFileSync(`${file}-wake`, "a file where the folder should be");
  const [one, two] = [await open(file), await open(file)];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name");
  await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
  await lease.release();
  const releasedMs = performance.now();
  await (await waiting).release();
  expect(performance.now() - releasedMs).toBeLessThan(2_000);
});

test("waiters that poll begin to listen as soon as a socket can be opened", async () => {
  const file = freshFile();
  writeFileSync(`${file}-wake`, "a file where the folder should be");
  const [one, two] = [await open(file, { ttl: TTL }), await open(file, { ttl: TTL })];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name", { wait: "1m" });
  await waits(one);
  rmSync(`${file}-wake`);
  await until("it listens", () => existsSync(`${file}-wake`));
  await lease.release();
  await (await waiting).release();
});

test.each([
  ["renews to a shorter ttl and is gone", { renew: false }, (lease: Lease) => lease.renew("1s")],
  [
    "releases, and atLeast keeps the name closed",
    { atLeast: "1s" },
    (lease: Lease) => lease.release(),
  ],
] as const)("the next waiter is granted in time when a holder %s", async (_, options, end) => {
  const file = freshFile();
  const [one, two] = [await open(file, { ttl: TTL }), await open(file, { ttl: TTL })];
  const lease = await one.acquire("name", options);
  const waiting = two.acquire("name", { wait: "1m" });
  await waits(one);
  await end(lease);
  const endedAtMs = performance.now();
  await (await waiting).release();
  expect(performance.now() - endedAtMs).toBeLessThan(20_000);
});

test("a database path that is too long for a socket still has its waiters notified", async () => {
  const folder = join(freshFolder(), "long".repeat(30));
  mkdirSync(folder);
  const file = join(folder, "locks.db");
  const [one, two] = [await open(file), await open(file)];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name");
  await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
  expect(existsSync(`${file}-wake`)).toBe(process.platform === "linux");
  await lease.release();
  await (await waiting).release();
});

test("invalid messages on the socket are ignored, and close removes the socket", async () => {
  const file = freshFile();
  const [one, two] = [await open(file), await open(file)];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name");
  await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
  const [socket] = readdirSync(`${file}-wake`);
  for (const nonsense of [
    "\n\n",
    "{}\nnull\n[]\n",
    '{"grantId":"x","token":"1","floor":"1","ttlMs":1000,"seq":1}\n',
    '{"grantId":1,"token":-1}\n',
    '{"look":true}\n{"grantId":1,"look":true}\n{"grantId":"x","look":true}\n',
    "x".repeat(3_000_000),
  ]) {
    await new Promise<void>((resolve) => {
      const client = connectSocket(join(`${file}-wake`, socket!));
      client.on("error", () => {});
      client.on("close", () => resolve());
      client.end(nonsense);
    });
  }
  expect((await one.inspect("name"))?.waiters.length).toBe(1);
  await lease.release();
  await (await waiting).release();
  await one.close();
  await two.close();
  expect(existsSync(`${file}-wake`)).toBe(false);
});

test("a waiter whose socket was deleted is not skipped as dead: it finds its grant at its next renewal", async () => {
  const file = freshFile();
  const options = { ttl: 900 };
  const [one, two, three] = [
    await open(file, options),
    await open(file, options),
    await open(file),
  ];
  const lease = await one.acquire("name");
  const first = two.acquire("name", { wait: "20s" });
  await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
  const second = three.acquire("name", { wait: "20s" });
  await until("both wait", async () => (await one.inspect("name"))!.waiters.length === 2);
  for (const socket of readdirSync(`${file}-wake`)) rmSync(join(`${file}-wake`, socket));
  await lease.release();
  const granted = await first;
  expect(granted.state).toBe("held");
  expect((await one.inspect("name"))!.waiters.length).toBe(1);
  await granted.release();
  expect((await second).token).toBeGreaterThan(granted.token);
});

test("closing while the first waiter is about to listen leaves no socket", async () => {
  for (let i = 0; i < 10; i++) {
    const file = freshFile();
    const [one, two] = [await open(file), await open(file)];
    await one.acquire("name");
    const waiting = two.acquire("name").catch((error: unknown) => error);
    for (let turn = 0; turn < i; turn++) await new Promise((resolve) => setImmediate(resolve));
    await two.close();
    expect(await waiting).toMatchObject({ code: "CLOSED" });
    await one.close();
    await until("nothing is left", () => !existsSync(`${file}-wake`));
  }
});

test("only users who may write the file can connect to its waiters' sockets", async () => {
  for (const [fileMode, folderMode] of [
    [0o600, 0o700],
    [0o660, 0o770],
  ] as const) {
    const file = freshFile();
    writeFileSync(file, "");
    chmodSync(file, fileMode);
    const [one, two] = [await open(file), await open(file)];
    const lease = await one.acquire("name");
    const waiting = two.acquire("name");
    await until("it waits", async () => (await one.inspect("name"))!.waiters.length === 1);
    expect(statSync(`${file}-wake`).mode & 0o777).toBe(folderMode);
    const [socket] = readdirSync(`${file}-wake`);
    expect(statSync(join(`${file}-wake`, socket!)).mode & 0o777).toBe(fileMode);
    await lease.release();
    await (await waiting).release();
  }
});

/** A socket file that a killed process left behind an hour ago. */
async function leaveDeadSocket(path: string): Promise<void> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(`${path}~`, resolve));
  renameSync(`${path}~`, path);
  server.close();
  age(path);
}

function age(path: string): void {
  const longAgo = new Date(Date.now() - 3_600_000);
  utimesSync(path, longAgo, longAgo);
}

test("only sockets of this store's own making are swept from the wake folder", async () => {
  const file = freshFile();
  const folder = `${file}-wake`;
  mkdirSync(folder, { mode: 0o700 });
  for (const name of ["abcd1234", "a file of another"]) {
    writeFileSync(join(folder, name), "kept");
    age(join(folder, name));
  }
  await leaveDeadSocket(join(folder, "app.sock"));
  await leaveDeadSocket(join(folder, "zyxw9876"));
  const [one, two] = [await open(file), await open(file)];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name");
  await until("the dead socket is gone", () => !existsSync(join(folder, "zyxw9876")));
  expect(readdirSync(folder)).toEqual(
    expect.arrayContaining(["a file of another", "abcd1234", "app.sock"]),
  );
  await lease.release();
  await (await waiting).release();
});

test("a link in the place of the wake folder is not followed", async () => {
  const file = freshFile();
  const victim = freshFolder();
  symlinkSync(victim, `${file}-wake`);
  writeFileSync(join(victim, "abcd1234"), "kept");
  age(join(victim, "abcd1234"));
  await leaveDeadSocket(join(victim, "zyxw9876"));
  const [one, two] = [await open(file, { ttl: TTL }), await open(file, { ttl: TTL })];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name");
  await waits(one);
  await lease.release();
  await (await waiting).release();
  await pause(50);
  expect(readdirSync(victim).sort()).toEqual(["abcd1234", "zyxw9876"]);
  await two.close();
  expect(lstatSync(`${file}-wake`).isSymbolicLink()).toBe(true);
});

test("a link that takes the wake folder's place after it was checked is not followed", (context) => {
  skipUnless(context, process.platform === "linux", "only Linux has paths of descriptors");
  const file = freshFile();
  writeFileSync(file, "");
  const folder = WakeFolder.make(file);
  onTestFinished(() => folder.close());
  const victim = freshFolder();
  for (const place of [victim, `${file}-wake`]) writeFileSync(join(place, "abcd1234"), "");
  renameSync(`${file}-wake`, `${file}-moved`);
  symlinkSync(victim, `${file}-wake`);
  folder.remove("abcd1234");
  expect(readdirSync(`${file}-moved`)).toEqual([]);
  expect(readdirSync(victim)).toEqual(["abcd1234"]);
});

test("a wake folder of this user that everybody may write loses that right", async () => {
  const file = freshFile();
  writeFileSync(file, "", { mode: 0o600 });
  mkdirSync(`${file}-wake`);
  chmodSync(`${file}-wake`, 0o777);
  const [one, two] = [await open(file), await open(file)];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name");
  await waits(one);
  expect(readdirSync(`${file}-wake`).length).toBe(1);
  expect(statSync(`${file}-wake`).mode & 0o777).toBe(0o700);
  await lease.release();
  await (await waiting).release();
});

test("a ticket in the table can't send a handover to a socket outside the wake folder", async () => {
  const file = freshFile();
  const outside = join(file, "../outside");
  let connections = 0;
  const server = createServer((socket) => {
    connections++;
    socket.destroy();
  });
  await new Promise<void>((resolve) => server.listen(outside, resolve));
  onTestFinished(() => void server.close());
  const [one, two] = [await open(file), await open(file)];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name", { ttl: 900 });
  await until("it listens", () => existsSync(`${file}-wake`));
  symlinkSync(outside, join(`${file}-wake`, "abcd1234"));
  const db = await rawConnection(file);
  for (const wake of ["../outside", "abcd1234"]) {
    db.exec(`UPDATE holdfast_claims SET wake = '${wake}' WHERE token = 0`);
    if (wake === "abcd1234") await lease.release();
  }
  await (await waiting).release();
  const again = await one.acquire("name");
  const next = two.acquire("name", { ttl: 900 });
  await waits(one);
  db.exec("UPDATE holdfast_claims SET wake = '../outside' WHERE token = 0");
  await again.release();
  await (await next).release();
  expect(connections).toBe(0);
});

const CLAIM: Claim = {
  names: ["name"],
  grantId: "waiter",
  seq: 1,
  permits: LOCK_LIMIT,
  limit: LOCK_LIMIT,
  ttlMs: 300_000,
  atLeastMs: 0,
  holder: "a test",
  queue: true,
};

async function openStore(file: string): Promise<SqliteStore> {
  const store = sqliteStore(await rawConnection(file), { closeDatabase: true });
  onTestFinished(() => store.close());
  return store;
}

test("the first waiter of a process keeps its place before a later one", async () => {
  const file = freshFile();
  const [one, two, three] = [await openStore(file), await openStore(file), await openStore(file)];
  const claim = (store: SqliteStore, holder: string, name: string): Promise<ClaimAnswer> =>
    store.claim({ ...CLAIM, names: [name], grantId: `${holder} ${name}`, holder }, () => {});
  await claim(one, "holder", "name");
  await claim(one, "holder", "other");
  // This process listens already when it claims the name; the other has yet to begin.
  await claim(three, "second", "other");
  await Promise.all([claim(two, "first", "name"), claim(three, "second", "name")]);
  const { waiters } = (await one.inspect("name"))!;
  expect(waiters.map(({ holder }) => holder)).toEqual(["first", "second"]);
});

test("a process listens before others can see its first ticket, so that a handover reaches it at once", async () => {
  const file = freshFile();
  const [one, two] = [await openStore(file), await openStore(file)];
  await one.claim({ ...CLAIM, grantId: "holder" }, () => {});
  const pushed = new Promise<Push>((resolve) => {
    // In the same turn: the ticket has just been made when the name is released.
    void two.claim(CLAIM, resolve);
    void one.release([{ name: "name", grantId: "holder" }]);
  });
  expect(await pushed).toMatchObject({ kind: "granted" });
});

test.each(["renewal", "claim"] as const)(
  "the late reply to an earlier %s leaves the push of a later claim in place",
  async (earlier) => {
    const store = await openStore(freshFile());
    await store.claim({ ...CLAIM, grantId: "holder" }, () => {});
    const pushes: Push[] = [];
    // In one transaction: the reply to the earlier request comes when the later claim waits.
    const [reply, answer] = await Promise.all([
      earlier === "renewal"
        ? store.renew([{ name: "name", grantId: "waiter", seq: 1, ttlMs: 300_000 }])
        : store.claim({ ...CLAIM, permits: 1, limit: 2 }, () => {}),
      store.claim({ ...CLAIM, seq: 2 }, (push) => pushes.push(push)),
    ]);
    expect([reply].flat()[0]!.kind).toBe(earlier === "renewal" ? "lost" : "mismatch");
    expect(answer.kind).toBe("queued");
    await store.release([{ name: "name", grantId: "holder" }]);
    expect(pushes.filter(({ kind }) => kind === "granted").length).toBe(1);
  },
);

/** How many sockets and wake folders this process has open. */
function openOnes(): number {
  const targets = readdirSync("/proc/self/fd").map((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return "";
    }
  });
  return targets.filter((one) => one.startsWith("socket:") || one.includes("-wake")).length;
}

test.for([
  ["once", 1],
  ["always", Number.POSITIVE_INFINITY],
] as const)(
  "a socket whose rights can't be set is closed again (%s)",
  async ([, times], context) => {
    skipUnless(context, process.platform === "linux", "only Linux lists what is open");
    const file = freshFile();
    const [one, two] = [await open(file), await open(file)];
    const lease = await one.acquire("name");
    const before = openOnes();
    let failures = 0;
    const chmod = fs.chmodSync;
    vi.spyOn(fs, "chmodSync").mockImplementation((path, mode) => {
      if (failures++ < times) throw Object.assign(new Error("EIO: chmod"), { code: "EIO" });
      chmod(path, mode);
    });
    syncBuiltinESMExports();
    onTestFinished(() => {
      vi.restoreAllMocks();
      syncBuiltinESMExports();
    });
    const waiting = two.acquire("name");
    await waits(one);
    const listens = times === 1;
    expect(failures).toBeGreaterThan(1);
    // The socket, and the folder.
    expect(openOnes() - before).toBe(listens ? 2 : 0);
    if (listens) expect(readdirSync(`${file}-wake`).length).toBe(1);
    else expect(existsSync(`${file}-wake`)).toBe(false);
    await lease.release();
    await (await waiting).release();
    await two.close();
    await until("nothing is open any more", () => openOnes() <= before);
  },
);

test.each([
  ["a folder of this user alone", 0o600, "", true],
  ["a folder that a group may write", 0o660, "", false],
  ["a path that is too long for a socket", 0o600, "long".repeat(30), false],
])("where descriptors have no paths (not Linux), %s", async (_, mode, name, listens) => {
  const exists = fs.existsSync;
  vi.spyOn(fs, "existsSync").mockImplementation(
    (path) => !String(path).startsWith("/proc/self/fd/") && exists(path),
  );
  syncBuiltinESMExports();
  onTestFinished(() => {
    vi.restoreAllMocks();
    syncBuiltinESMExports();
  });
  const folder = join(freshFolder(), name);
  mkdirSync(folder, { recursive: true });
  const file = join(folder, "locks.db");
  writeFileSync(file, "");
  chmodSync(file, mode);
  const [one, two] = [await open(file, { ttl: TTL }), await open(file, { ttl: TTL })];
  const lease = await one.acquire("name");
  const waiting = two.acquire("name");
  await waits(one);
  expect(existsSync(`${file}-wake`)).toBe(listens);
  await lease.release();
  // Pushed, or found by polling.
  await (await waiting).release();
  await two.close();
  expect(existsSync(`${file}-wake`)).toBe(false);
});

test("a wake folder that was deleted while in use is made again for the next waiter", async () => {
  const file = freshFile();
  const [one, two] = [await open(file, { ttl: TTL }), await open(file, { ttl: TTL })];
  const handOver = async (): Promise<void> => {
    const lease = await one.acquire("name");
    const waiting = two.acquire("name", { wait: "4m" });
    await waits(one);
    await lease.release();
    await (await waiting).release();
  };
  await handOver();
  rmSync(`${file}-wake`, { recursive: true });
  await handOver();
  expect(readdirSync(`${file}-wake`)).toHaveLength(1);
});
