import { spawnSync } from "node:child_process";
import { chmodSync, mkdtempSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { type Fault, fault } from "../faults/fault.js";
import type { Lab } from "./lab.js";
import { findProgram } from "./requirements.js";
import { LOOPBACK, type Site } from "./server.js";

/**
 * libfaketime before 0.9.11 makes a semaphore and a piece of shared memory for each process, by its
 * number: who is killed leaves them behind, and who changes its user, as PostgreSQL does, can't open
 * them. So there is one pair for all, under a number that no process can have, made by a shell that
 * gives away its own and dies before it can take them back.
 */
const GIVE_AWAY = `unset LD_PRELOAD
[ -e /dev/shm/sem.faketime_sem_$$ ] || exit 0
chmod 666 /dev/shm/faketime_shm_$$ /dev/shm/sem.faketime_sem_$$
mv /dev/shm/faketime_shm_$$ "/dev/shm/faketime_shm_$1"
mv /dev/shm/sem.faketime_sem_$$ "/dev/shm/sem.faketime_sem_$1"
echo given
kill -KILL $$`;
const ABOVE_ALL_PIDS = 2 ** 22 + 1;

/**
 * A wall clock that can be set, for those who run under it: Redis, PostgreSQL, Node, ZooKeeper. Not
 * for etcd: a program in Go asks the kernel by itself, and sees true time. Monotonic time stays true
 * for all.
 */
export class FalseClock {
  readonly name: string;
  readonly #file: string;
  readonly #preload: string;
  #shared: string | null = null;
  readonly #jumpsMs = new Map<object, number>();

  private constructor(name: string, file: string, preload: string) {
    this.name = name;
    this.#file = file;
    this.#preload = preload;
    this.#set();
  }

  static async open(lab: Lab, name = "clock"): Promise<FalseClock> {
    const library = findProgram("libfaketimeMT.so.1");
    const file = join(mkdtempSync(join(lab.folder, "clock-")), "ahead");
    chmodSync(dirname(file), 0o711);
    const number = ABOVE_ALL_PIDS + Math.floor(Math.random() * 2 ** 30);
    lab.onEnd(`rm -f /dev/shm/faketime_shm_${number} /dev/shm/sem.faketime_sem_${number}`);
    const clock = new FalseClock(name, file, `${library}:${libc()}`);
    const { stdout } = spawnSync("sh", ["-c", GIVE_AWAY, "sh", String(number)], {
      env: { PATH: process.env["PATH"], ...clock.env },
      encoding: "utf8",
    });
    if (stdout.includes("given")) {
      clock.#shared = `/faketime_sem_${number} /faketime_shm_${number}`;
    }
    return clock;
  }

  get aheadMs(): number {
    return [...this.#jumpsMs.values()].reduce((sum, ms) => sum + ms, 0);
  }

  /** For a process that is started under it: a server's site, or a child's environment. */
  get env(): Readonly<Record<string, string>> {
    return {
      LD_PRELOAD: this.#preload,
      FAKETIME_TIMESTAMP_FILE: this.#file,
      FAKETIME_NO_CACHE: "1",
      FAKETIME_DONT_FAKE_MONOTONIC: "1",
      FAKETIME_DISABLE_SHM: "1",
      // Or every stat would wait for the semaphore, which one who is stopped or killed may hold.
      NO_FAKE_STAT: "1",
      ...(this.#shared !== null && { FAKETIME_SHARED: this.#shared }),
    };
  }

  /** The same site, under this clock. */
  site(site: Site = LOOPBACK): Site {
    return { ...site, env: { ...site.env, ...this.env } };
  }

  /** Ahead, or back if negative; healed: back by as much. */
  jump(byMs: number): Fault {
    const key = {};
    return fault(
      `${this.name} jumps by ${byMs > 0 ? "+" : ""}${byMs} ms`,
      () => {
        this.#jumpsMs.set(key, byMs);
        this.#set();
      },
      () => {
        this.#jumpsMs.delete(key);
        this.#set();
      },
    );
  }

  /** Replaced as a whole: it is read at every look at the clock. */
  #set(): void {
    const seconds = (this.aheadMs / 1_000).toFixed(3);
    writeFileSync(`${this.#file}.new`, seconds.startsWith("-") ? seconds : `+${seconds}`);
    renameSync(`${this.#file}.new`, this.#file);
  }
}

/** Loaded after libfaketime by name, or redis-server, whose allocator starts early, aborts. */
function libc(): string {
  const path = /\/\S+\/libc\.so\.6$/m.exec(readFileSync("/proc/self/maps", "utf8"))?.[0];
  if (path === undefined) throw new Error("a false clock needs the GNU libc");
  return path;
}
