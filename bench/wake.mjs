import { execFileSync, fork } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { openSqlite } from "../dist/stores/sqlite/index.js";
import { formatMs, machineMs, quantile, table } from "./lib/measure.mjs";

const TIMES = 200;
const IDLE_MS = 3_000;
const WAYS = ["socket", "fifo", "file watch", "polling 1 ms", "polling 10 ms"];

/** Ways in which one process can wake another on this machine: why the SQLite store uses a socket. */
export async function run() {
  const rows = [];
  for (const way of WAYS) {
    const folder = fs.mkdtempSync(join(tmpdir(), "holdfast-bench-"));
    const child = fork(fileURLToPath(import.meta.url), [way, folder]);
    try {
      if (way === "fifo") execFileSync("mkfifo", [join(folder, "at")]);
      const wake = await waker(way, folder);
      child.send("start");
      await once(child, "message");
      const samplesMs = [];
      for (let i = 0; i < TIMES; i++) {
        await new Promise((resolve) => setTimeout(resolve, 5 + Math.random() * 10));
        const woken = once(child, "message");
        const sentMs = machineMs();
        wake();
        const [{ atMs }] = await woken;
        samplesMs.push(atMs - sentMs);
      }
      child.send("mark");
      await new Promise((resolve) => setTimeout(resolve, IDLE_MS));
      child.send("cpu");
      const [{ cpuMs, elapsedMs }] = await once(child, "message");
      rows.push([
        way,
        formatMs(quantile(samplesMs, 0.5)),
        formatMs(quantile(samplesMs, 0.99)),
        `${((cpuMs / elapsedMs) * 100).toFixed(2)} %`,
      ]);
    } finally {
      child.kill("SIGKILL");
      fs.rmSync(folder, { recursive: true, force: true });
    }
  }
  return `### Waking another process\n\n${table(["", "p50", "p99", "idle CPU"], rows)}`;
}

async function waker(way, folder) {
  const at = join(folder, "at");
  switch (way) {
    case "socket":
      return () => net.connect(at).end("x\n");
    case "fifo":
      return () => {
        const fd = fs.openSync(at, fs.constants.O_WRONLY | fs.constants.O_NONBLOCK);
        fs.writeSync(fd, "x\n");
        fs.closeSync(fd);
      };
    case "file watch":
      fs.writeFileSync(at, "");
      return () => fs.appendFileSync(at, "x");
    default: {
      const db = await openSqlite(at);
      db.exec(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE t (n); INSERT INTO t VALUES (0)",
      );
      return () => db.exec("UPDATE t SET n = n + 1");
    }
  }
}

/** The process that is woken. */
async function sleeper(way, folder) {
  const at = join(folder, "at");
  const woken = () => process.send({ atMs: machineMs() });
  await once(process, "message");
  switch (way) {
    case "socket":
      await new Promise((resolve) =>
        net.createServer((s) => s.on("data", woken)).listen(at, resolve),
      );
      break;
    case "fifo": {
      const fd = fs.openSync(at, fs.constants.O_RDWR | fs.constants.O_NONBLOCK);
      new net.Socket({ fd, readable: true, writable: false }).on("data", woken);
      break;
    }
    case "file watch":
      fs.watch(at, woken);
      break;
    default: {
      const db = await openSqlite(at);
      const look = () => db.prepare("PRAGMA data_version").get().data_version;
      let last = look();
      setInterval(
        () => {
          const now = look();
          if (now === last) return;
          last = now;
          woken();
        },
        Number(/\d+/.exec(way)[0]),
      );
    }
  }
  let mark;
  process.on("message", (message) => {
    if (message === "mark") mark = { cpu: process.cpuUsage(), atMs: machineMs() };
    else {
      const { user, system } = process.cpuUsage(mark.cpu);
      process.send({ cpuMs: (user + system) / 1_000, elapsedMs: machineMs() - mark.atMs });
    }
  });
  process.send("ready");
}

if (process.send && WAYS.includes(process.argv[2])) await sleeper(process.argv[2], process.argv[3]);
