import { openFolder } from "./lib/folder.mjs";
import { fifo, fileWatch, polling, socket } from "./lib/wakers.mjs";

export const title = "Ways to wake another process";

export const contestants = [socket, fifo, fileWatch, polling(1), polling(10)];

export const open = openFolder;

// Why the SQLite store uses a socket: ARCHITECTURE.md.
export const measurements = [
  { kind: "handover", among: contestants.map(({ name }) => name), yardstick: "socket" },
];
