import { readdirSync, readFileSync, readlinkSync } from "node:fs";

/**
 * The processes whose working directory is in one of these folders. The lab finds its own processes
 * so, because a pid may belong to another process by now, and PostgreSQL's processes leave the
 * group of their parent.
 */
export function processesIn(folders: readonly string[]): number[] {
  return list("/proc")
    .filter((entry) => /^\d+$/.test(entry))
    .filter((pid) => {
      const link = readLink(`/proc/${pid}/cwd`).replace(/ \(deleted\)$/, "");
      return folders.some((folder) => link === folder || link.startsWith(`${folder}/`));
    })
    .map(Number);
}

/** Whether all threads of the process are stopped: each stops on its own. */
export function isStopped(pid: number): boolean {
  return list(`/proc/${pid}/task`).every((thread) => {
    const stat = read(`/proc/${pid}/task/${thread}/stat`);
    // After the last bracket: the program's name may contain brackets.
    return stat === "" || /^[TtZX]/.test(stat.slice(stat.lastIndexOf(")") + 2));
  });
}

/** Whether this very process listens on the port. */
export function listensOn(pid: number, port: number): boolean {
  const hex = port.toString(16).toUpperCase().padStart(4, "0");
  const listening = new RegExp(`:${hex} [0-9A-F]+:0000 0A (?:\\S+ +){5}(\\d+)`, "g");
  const sockets = ["tcp", "tcp6"].flatMap((kind) =>
    [...read(`/proc/${pid}/net/${kind}`).matchAll(listening)].map(([, id]) => `socket:[${id}]`),
  );
  if (sockets.length === 0) return false;
  return list(`/proc/${pid}/fd`).some((fd) => sockets.includes(readLink(`/proc/${pid}/fd/${fd}`)));
}

export function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

// A process may end while it is read, and processes of other users may be hidden.
const list = (folder: string): string[] => orElse(() => readdirSync(folder), []);
const read = (file: string): string => orElse(() => readFileSync(file, "utf8"), "");
const readLink = (link: string): string => orElse(() => readlinkSync(link), "");

function orElse<T>(fn: () => T, other: T): T {
  try {
    return fn();
  } catch {
    return other;
  }
}
