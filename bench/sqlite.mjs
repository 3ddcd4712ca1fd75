import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import lockfile from "proper-lockfile";
import { connect } from "../dist/index.js";
import { openSqlite, sqliteStore } from "../dist/stores/sqlite/index.js";
import { contest, inFlight, rateTable, sequentially } from "./lib/measure.mjs";

/** Acquire + release on a file. Goals: at least 0.6 of the raw transactions with the same writes; ahead of proper-lockfile. */
export async function run() {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-bench-"));
  try {
    const raw = rawPair(await openSqlite(join(folder, "raw.db")));
    const locks = await connect(`sqlite:${join(folder, "locks.db")}`);
    const files = Array.from({ length: 64 }, (_, lane) => join(folder, `file-${lane}`));
    for (const file of files) writeFileSync(file, "");
    const withLock = async (lane) => {
      const lease = await locks.acquire(`name ${lane}`);
      await lease.release();
    };
    const withLockfile = async (lane) => {
      const release = await lockfile.lock(files[lane]);
      await release();
    };
    const sections = [];
    for (const [title, way] of [
      ["one after another", sequentially],
      ["64 in flight, each its own name", (pair) => inFlight(64, pair)],
    ]) {
      const results = await contest([
        { name: "raw transactions", run: way(raw) },
        { name: "holdfast sqlite", run: way(withLock) },
        { name: "proper-lockfile", run: way(withLockfile) },
      ]);
      sections.push(`### SQLite: ${title}\n\n${rateTable(results, "raw transactions")}`);
    }
    await locks.close();
    return sections.join("\n\n");
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** The bare writes of an acquire and a release: same tables, same durability, nothing else. */
function rawPair(db) {
  sqliteStore(db);
  db.exec("PRAGMA busy_timeout = 0");
  const begin = db.prepare("BEGIN IMMEDIATE");
  const commit = db.prepare("COMMIT");
  const token = db.prepare(
    "UPDATE holdfast_meta SET last_token = last_token + 1 RETURNING last_token",
  );
  const insert = db.prepare(
    "INSERT INTO holdfast_claims VALUES (?, 1, 'grant', 1, 1, 0, 'holder', 0, 1, 1e9, 1e9, ?, ?, 0, 'no', '', '')",
  );
  const remove = db.prepare("DELETE FROM holdfast_claims WHERE name = ? AND place = 1");
  return async (lane) => {
    db.exec("PRAGMA synchronous = FULL");
    begin.run();
    const { last_token } = token.get();
    insert.run(`name ${lane}`, last_token, last_token);
    commit.run();
    db.exec("PRAGMA synchronous = NORMAL");
    begin.run();
    remove.run(`name ${lane}`);
    commit.run();
    // Like any asynchronous lock it lets others run between its pairs.
    await new Promise((resolve) => setImmediate(resolve));
  };
}
