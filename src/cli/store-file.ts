import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { parseStoreUrl } from "../stores/registry.js";
import { usage } from "./exit.js";

/** Rights of users other than the owner and the group. */
const OTHERS = { read: 0o004, write: 0o002 };

/** More than any URL has. A device or a pipe may be without end. */
const MOST_BYTES = 65_536;

/** Reads a store's URL from a file: no process list shows it there. `by` names the file in messages. */
export function readStoreFile(path: string, by: string): string {
  const { text, mode } = read(path, by);
  const lines = text.split("\n").flatMap((line) => line.trim() || []);
  const [url] = lines;
  if (url === undefined) throw usage(`${by} is empty; it must hold the URL of a store`);
  if (lines.length > 1) {
    throw usage(`${by} has ${lines.length} lines; it must hold one, the URL of a store`);
  }
  if (process.platform === "win32") return url;
  const wrong =
    mode & OTHERS.write
      ? "can be changed by every user of this machine, who could send your locks elsewhere"
      : mode & OTHERS.read && hasPassword(url)
        ? "holds a password that every user of this machine can read"
        : null;
  if (wrong === null) return url;
  const octal = (mode & 0o777).toString(8).padStart(4, "0");
  throw usage(`${by} ${wrong} (mode ${octal}); run chmod o-rw ${path}`);
}

/** Text and mode of the same open file: a file that replaces it in between does not count. */
function read(path: string, by: string): { text: string; mode: number } {
  try {
    const file = openSync(path, "r");
    try {
      return { text: readText(file), mode: fstatSync(file).mode };
    } finally {
      closeSync(file);
    }
  } catch (error) {
    throw usage(`${by} can't be read: ${(error as Error).message}`);
  }
}

function readText(file: number): string {
  const bytes = Buffer.alloc(MOST_BYTES + 1);
  let length = 0;
  for (let count = -1; count !== 0 && length < bytes.length; length += count) {
    count = readSync(file, bytes, length, bytes.length - length, null);
  }
  if (length > MOST_BYTES) throw new Error(`it is longer than ${MOST_BYTES} bytes`);
  return bytes.toString("utf8", 0, length);
}

function hasPassword(url: string): boolean {
  try {
    return parseStoreUrl(url).password !== "";
  } catch {
    // A password with special characters makes a URL that can't be parsed.
    return url.includes("@");
  }
}
