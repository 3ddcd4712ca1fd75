import { chmodSync, mkdirSync, mkdtempSync } from "node:fs";
import { join } from "node:path";
import { type Fault, fault } from "../faults/fault.js";
import type { Victim } from "../faults/server.js";
import type { Lab } from "./lab.js";
import { findProgram } from "./requirements.js";
import { runTool } from "./run.js";
import { LOOPBACK, type Site } from "./server.js";
import { until } from "./until.js";

const UNMOUNT_MS = 10_000;
/** Metadata is not written by itself in the course of a test: what was not synced is lost. */
const OPTIONS = "loop,noatime,commit=300";
/**
 * EXT4_IOC_SHUTDOWN with NOLOGFLUSH: from now on nothing reaches the disk. Node has no ioctl. A sync
 * that is under way then may report success and be lost. So whoever uses the disk is stopped before,
 * even in the middle of a system call, and never gets to see the answer.
 */
const CUT = `
  my ($folder, $owner) = @ARGV;
  my (%stopped, @more);
  sub uses { my $path = readlink($_[0]) // ""; $path eq $folder || index($path, "$folder/") == 0 }
  do {
    my %pids = map { m{^/proc/(\\d+)} ? ($1 => 1) : () } grep { uses($_) } glob("/proc/[0-9]*/{cwd,fd/*}");
    @more = grep { $_ != $owner && !exists $stopped{$_} } keys %pids;
    kill("STOP", @more);
    @stopped{@more} = ();
  } while (@more);
  open(my $root, "<", $folder) or die "$!\\n";
  my $flags = pack("L", 2);
  my $done = ioctl($root, 0x8004587D, $flags);
  my $error = $!;
  kill("KILL", keys %stopped);
  die "$error\\n" unless $done`;

/** A disk of its own, whose power can be cut: what was synced is there afterwards, and the rest is gone. */
export class Disk implements AsyncDisposable {
  readonly folder: string;
  readonly #image: string;
  readonly #undo: () => Promise<void>;

  private constructor(folder: string, image: string, undo: () => Promise<void>) {
    this.folder = folder;
    this.#image = image;
    this.#undo = undo;
  }

  static async open(lab: Lab, { sizeMb = 64 }: { readonly sizeMb?: number } = {}): Promise<Disk> {
    const home = mkdtempSync(join(lab.folder, "disk-"));
    const folder = join(home, "root");
    const image = join(home, "image");
    chmodSync(home, 0o711);
    mkdirSync(folder);
    // Detached from its loop device with the last unmount.
    const [mountpoint, umount] = [findProgram("mountpoint"), findProgram("umount")];
    const undo = `! ${mountpoint} -q '${folder}' || ${umount} -l '${folder}'`;
    const forget = lab.onEnd(undo);
    const disk = new Disk(folder, image, async () => {
      await runTool(["sh", "-c", undo]);
      forget();
    });
    try {
      await runTool(["truncate", "-s", `${sizeMb}M`, image]);
      await runTool(["mkfs.ext4", "-q", "-F", image]);
      await disk.#mount();
      return disk;
    } catch (error) {
      await disk.close();
      throw error;
    }
  }

  /** The same site, with this disk. */
  site(site: Site = LOOPBACK): Site {
    return { ...site, folder: this.folder };
  }

  /** Nothing is written any more. Whoever works there or has a file open there dies in the same moment, but for this process. */
  async cutPower(): Promise<void> {
    await runTool(["perl", "-e", CUT, this.folder, String(process.pid)]);
  }

  /** The disk as it was left. */
  async powerOn(): Promise<void> {
    // A process that was killed may still be on its way out.
    await until(`nobody uses ${this.folder}`, UNMOUNT_MS, () =>
      runTool(["umount", this.folder]).then(
        () => true,
        (error) => {
          if (/busy/.test(String(error))) return false;
          throw error;
        },
      ),
    );
    // Another process may have been given mounts of its own meanwhile, a copy of ours among them.
    await until(`nobody has ${this.#image} mounted`, UNMOUNT_MS, async () => {
      return (await runTool(["losetup", "-j", this.#image])) === "";
    });
    await this.#mount();
  }

  /** The processes on it have to end first. */
  async close(): Promise<void> {
    await this.#undo();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #mount(): Promise<void> {
    await runTool(["mount", "-o", OPTIONS, this.#image, this.folder]);
  }
}

/** The power of a disk, and of these who use it; healed: all are on again, as far as they can be started. */
export function powerLoss(
  disk: Disk,
  users: readonly Pick<Victim, "name" | "kill" | "start">[],
): Fault {
  return fault(
    `power loss of ${users.map(({ name }) => name).join(", ")}`,
    async () => {
      await disk.cutPower();
      await Promise.all(users.map((user) => user.kill()));
    },
    async () => {
      // Whom an earlier try has started.
      await Promise.all(users.map((user) => user.kill()));
      await disk.powerOn();
      await Promise.all(users.map((user) => user.start?.()));
    },
  );
}
