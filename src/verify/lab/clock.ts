import { spawnSync } from "node:child_process";
import { chmodSync, mkdtempSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { type Fault, fault } from "../fault.js";
import type { Lab } from "./lab.js";
import { findProgram } from "./requirements.js";
import { LOOPBACK, type Site } from "./server.js";

/**
 * libfaketime before 0.9.11 makes a semaphore and a piece of shared memory for each process, named
 * by its pid. A killed process leaves them behind, and a process that changes its user, as
 * PostgreSQL does, can't open them. So all processes share one pair, under a number that no pid can
 * have. A shell makes the pair, gives it away and dies before it can remove it.
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
 * A wall clock that can be set, for processes that run under it: Redis, PostgreSQL, Node,
 * ZooKeeper. It does not work for etcd: a Go program reads the kernel's clock directly, and sees
 * true time. Monotonic time stays true for all.
 */
export class FalseClock {
  /** The name in faults, for people. */
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

  /** Makes a clock that shows true time at first. Rejects if libfaketime is missing. */
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

  /** How far the clock is ahead of true time, in milliseconds. */
  get aheadMs(): number {
    return [...this.#jumpsMs.values()].reduce((sum, ms) => sum + ms, 0);
  }

  /** The environment of a process under this clock: for a server's site, or for a child process. */
  get env(): Readonly<Record<string, string>> {
    return {
      LD_PRELOAD: this.#preload,
      FAKETIME_TIMESTAMP_FILE: this.#file,
      FAKETIME_NO_CACHE: "1",
      FAKETIME_DONT_FAKE_MONOTONIC: "1",
      // Otherwise timed waits of a thread by the monotonic clock end at wrong times: servers of a ZooKeeper
      // ensemble would find no leader.
      FAKETIME_FORCE_MONOTONIC_FIX: "0",
      FAKETIME_DISABLE_SHM: "1",
      // Otherwise every stat would wait for the semaphore, which a stopped or killed process may
      // hold.
      NO_FAKE_STAT: "1",
      ...(this.#shared !== null && { FAKETIME_SHARED: this.#shared }),
    };
  }

  /** The same site under this clock. */
  site(site: Site = LOOPBACK): Site {
    return { ...site, env: { ...site.env, ...this.env } };
  }

  /** Sets the clock ahead, or back if negative; healing reverses that. */
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

  /** The file is replaced as a whole, because it is read at every reading of the clock. */
  #set(): void {
    const seconds = (this.aheadMs / 1_000).toFixed(3);
    writeFileSync(`${this.#file}.new`, seconds.startsWith("-") ? seconds : `+${seconds}`);
    renameSync(`${this.#file}.new`, this.#file);
  }
}

/**
 * The path of libc. It must be loaded by name after libfaketime, otherwise redis-server, whose
 * allocator starts early, aborts.
 */
function libc(): string {
  const path = /\/\S+\/libc\.so\.6$/m.exec(readFileSync("/proc/self/maps", "utf8"))?.[0];
  if (path === undefined) throw new Error("a false clock needs the GNU libc");
  return path;
}
