import { statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { openSqlite, sqliteStore } from "../dist/stores/sqlite/index.js";
import { openFolder } from "./lib/folder.mjs";
import { holdfast } from "./lib/holdfast.mjs";
import { socket } from "./lib/wakers.mjs";

export const title = "SQLite";

/** The bare writes of an acquire and a release: same tables, same durability, nothing else. */
const raw = {
  name: "raw transactions",
  async open({ folder }) {
    const db = await openSqlite(join(folder, "raw.db"));
    sqliteStore(db);
    db.exec("PRAGMA busy_timeout = 0");
    const begin = db.prepare("BEGIN IMMEDIATE");
    const commit = db.prepare("COMMIT");
    const token = db.prepare(
      "UPDATE holdfast_meta SET last_token = last_token + 1 RETURNING last_token",
    );
    const insert = db.prepare(
      "INSERT INTO holdfast_claims VALUES (?, 1, 'grant', 1, 1, 0, 'holder', 0, 1, 1e9, 1e9, ?, ?, 0, 'no', '', '', '')",
    );
    const remove = db.prepare("DELETE FROM holdfast_claims WHERE name = ? AND place = 1");
    return {
      async acquire(name) {
        db.exec("PRAGMA synchronous = FULL");
        begin.run();
        const { last_token } = token.get();
        insert.run(name, last_token, last_token);
        commit.run();
        return name;
      },
      async release(name) {
        db.exec("PRAGMA synchronous = NORMAL");
        begin.run();
        remove.run(name);
        commit.run();
        // Like any asynchronous lock it lets others run between its pairs.
        await new Promise((resolve) => setImmediate(resolve));
      },
      close: async () => db.close(),
    };
  },
};

const STALE_MIN_MS = 2_000;

/** It is called with `retries` because it does not wait otherwise. */
const lockfile = (name, { pauseMs, slow, retries }) => ({
  name,
  slow,
  peer: true,
  needs: ["proper-lockfile"],
  pauseMs,
  async open({ folder }, { ttlMs }) {
    const { default: properLockfile } = await import("proper-lockfile");
    const stale = Math.max(STALE_MIN_MS, ttlMs);
    const files = new Map();
    const file = (of) => {
      let path = files.get(of);
      if (path === undefined) {
        path = join(folder, Buffer.from(of).toString("hex"));
        writeFileSync(path, "");
        files.set(of, path);
      }
      return path;
    };
    return {
      acquire: (of) => properLockfile.lock(file(of), { stale, retries, onCompromised() {} }),
      release: (release) => release(),
      close: async () => {},
      expiresInMs: async (of) => statSync(`${file(of)}.lock`).mtimeMs + stale - Date.now(),
    };
  },
});

export const contestants = [
  raw,
  socket,
  // A file for each build: two builds in one process do not know of each other's connections.
  ...holdfast(async ({ load, name }, { folder }, options) => {
    const { connect } = await load("index.js");
    return connect(`sqlite:${join(folder, `${name}.db`)}`, options);
  }),
  lockfile("proper-lockfile", { pauseMs: 1_000, slow: true, retries: { forever: true } }),
  lockfile("proper-lockfile, 1 ms", {
    pauseMs: 1,
    retries: { forever: true, minTimeout: 1, maxTimeout: 1 },
  }),
];

export const open = openFolder;

const waiters = ["Holdfast", "proper-lockfile", "proper-lockfile, 1 ms"];

export const measurements = [
  {
    kind: "uncontended",
    among: ["raw transactions", "Holdfast", "proper-lockfile"],
    yardstick: "raw transactions",
    goals: [
      { figure: "timeRatio", goal: "≤ 1.67" },
      { figure: "throughputRatio", goal: "≥ 0.6" },
      { figure: "pairsPerSecond", goal: "≥ 1 × proper-lockfile" },
    ],
  },
  {
    kind: "handover",
    among: ["socket", ...waiters],
    yardstick: "socket",
    goals: [
      { figure: "p50Ms", goal: "≤ 5" },
      { figure: "idleCpuPercent", goal: "< 1" },
    ],
  },
  {
    kind: "contention",
    among: waiters,
    yardstick: "proper-lockfile, 1 ms",
    contenders: 20,
    goals: [
      { figure: "fairness", goal: "≥ 0.99" },
      { figure: "starved", goal: "≤ 0" },
      { figure: "heldTwice", goal: "≤ 0" },
    ],
  },
  {
    kind: "growth",
    among: ["Holdfast"],
    goals: [
      { figure: "bytesPerLease", goal: "≤ 600" },
      { figure: "blockMs", goal: "≤ 10" },
      { figure: "lost", goal: "≤ 0" },
    ],
  },
  {
    kind: "recovery",
    among: waiters,
    goals: [{ figure: "p50Ms", goal: "≤ 50" }],
  },
  {
    kind: "recovery",
    id: "recovery-waiter",
    label: "recovery, the first waiter killed",
    killed: "waiter",
    among: waiters,
  },
];
