import { execFileSync } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import net from "node:net";
import { join } from "node:path";
import { setTimeout as sleepMs } from "node:timers/promises";
import { openSqlite } from "../../dist/stores/sqlite/index.js";

const at = (folder, name, ending) => join(folder, `${Buffer.from(name).toString("hex")}.${ending}`);
const close = async () => {};

/** Ways in which one process can wake another on this machine. */
export const socket = {
  name: "socket",
  async open({ folder }) {
    const servers = new Map();
    return {
      async listen(name) {
        if (!servers.has(name)) {
          servers.set(name, net.createServer());
          await once(servers.get(name).listen(at(folder, name, "socket")), "listening");
        }
        const connected = once(servers.get(name), "connection");
        return { woken: connected.then(([connection]) => once(connection, "data")) };
      },
      wake: async (name) => void net.connect(at(folder, name, "socket")).end("x\n"),
      async close() {
        for (const server of servers.values()) server.close();
      },
    };
  },
};

export const fifo = {
  name: "FIFO",
  open: async ({ folder }) => ({
    async listen(name) {
      const file = at(folder, name, "fifo");
      if (!fs.existsSync(file)) execFileSync("mkfifo", [file]);
      const fd = fs.openSync(file, fs.constants.O_RDWR | fs.constants.O_NONBLOCK);
      const pipe = new net.Socket({ fd, readable: true, writable: false });
      return { woken: once(pipe, "data").then(() => pipe.destroy()) };
    },
    async wake(name) {
      const flags = fs.constants.O_WRONLY | fs.constants.O_NONBLOCK;
      const fd = fs.openSync(at(folder, name, "fifo"), flags);
      fs.writeSync(fd, "x\n");
      fs.closeSync(fd);
    },
    close,
  }),
};

export const fileWatch = {
  name: "file watch",
  open: async ({ folder }) => ({
    async listen(name) {
      const file = at(folder, name, "watched");
      fs.writeFileSync(file, "");
      const watcher = fs.watch(file);
      return { woken: once(watcher, "change").then(() => watcher.close()) };
    },
    wake: async (name) => fs.appendFileSync(at(folder, name, "watched"), "x"),
    close,
  }),
};

export const polling = (pauseMs) => ({
  name: `polling every ${pauseMs} ms`,
  pauseMs,
  async open({ folder }) {
    const db = await openSqlite(join(folder, "poll.db"));
    db.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA busy_timeout = 1000");
    db.exec("CREATE TABLE IF NOT EXISTS wakes (name TEXT)");
    const look = db.prepare("PRAGMA data_version");
    const write = db.prepare("INSERT INTO wakes VALUES (?)");
    return {
      async listen() {
        const { data_version: before } = look.get();
        const changed = async () => {
          while (look.get().data_version === before) await sleepMs(pauseMs);
        };
        return { woken: changed() };
      },
      wake: async (name) => void write.run(name),
      close: async () => db.close(),
    };
  },
});
