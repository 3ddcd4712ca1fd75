import { chmodSync, mkdirSync, mkdtempSync } from "node:fs";
import { type FileHandle, open, rm } from "node:fs/promises";
import { join } from "node:path";
import { type Fault, fault } from "../fault.js";
import type { Lab } from "./lab.js";
import { findProgram } from "./requirements.js";
import { runTool } from "./run.js";
import { LOOPBACK, type Site } from "./server.js";
import { until } from "./until.js";

const UNMOUNT_MS = 10_000;
/** The kernel writes no metadata by itself in the course of a test, so data without a sync is lost. */
const OPTIONS = "loop,noatime,commit=300";
/**
 * EXT4_IOC_SHUTDOWN with NOLOGFLUSH: from then on nothing reaches the disk. Perl sends it, because
 * Node has no ioctl. A pending sync may report success and yet be lost. So every process that uses
 * the disk is stopped before, even in the middle of a system call, and never sees the result.
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

/** A separate disk whose power can be cut: synced data is there afterwards, and the rest is gone. */
export class Disk implements AsyncDisposable {
  /** The folder where the disk is mounted. */
  readonly folder: string;
  readonly #image: string;
  readonly #undo: () => Promise<void>;

  private constructor(folder: string, image: string, undo: () => Promise<void>) {
    this.folder = folder;
    this.#image = image;
    this.#undo = undo;
  }

  /** Makes and mounts a disk. Rejects where loop mounts are not permitted. */
  static async open(lab: Lab, { sizeMb = 64 }: { readonly sizeMb?: number } = {}): Promise<Disk> {
    const home = mkdtempSync(join(lab.folder, "disk-"));
    const folder = join(home, "root");
    const image = join(home, "image");
    chmodSync(home, 0o711);
    mkdirSync(folder);
    // The last unmount also detaches the loop device.
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

  /** The same site with this disk. */
  site(site: Site = LOOPBACK): Site {
    return { ...site, folder: this.folder };
  }

  /**
   * Stops all writes. Every process that works there or has a file open there dies at the same
   * moment, except this one.
   */
  async cutPower(): Promise<void> {
    await runTool(["perl", "-e", CUT, this.folder, String(process.pid)]);
  }

  /** Mounts the disk with the data that was synced. */
  async powerOn(): Promise<void> {
    // A killed process may not have ended yet.
    await until(`nobody uses ${this.folder}`, UNMOUNT_MS, () =>
      runTool(["umount", this.folder]).then(
        () => true,
        (error) => {
          if (/busy/.test(String(error))) return false;
          throw error;
        },
      ),
    );
    // Another process may have got mounts of its own meanwhile, with a copy of ours.
    await until(`nobody has ${this.#image} mounted`, UNMOUNT_MS, async () => {
      return (await runTool(["losetup", "-j", this.#image])) === "";
    });
    await this.#mount();
  }

  /** Another file takes all space that is left. `free` frees space before the rest is taken. */
  full(free: () => Promise<void> = async () => {}): Fault {
    const file = join(this.folder, "filler");
    return fault(
      "the disk is full",
      async () => {
        await fillWith(file);
        await free();
        await fillWith(file);
      },
      () => rm(file, { force: true }),
    );
  }

  /** Unmounts the disk. Its processes have to end first. */
  async close(): Promise<void> {
    await this.#undo();
  }

  /** The same as `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #mount(): Promise<void> {
    await runTool(["mount", "-o", OPTIONS, this.#image, this.folder]);
  }
}

/** Appends until nothing more fits: first in large pieces, then in small ones. */
async function fillWith(file: string): Promise<void> {
  const handle = await open(file, "a");
  try {
    for (const bytes of [65_536, 4_096, 512]) {
      const piece = Buffer.alloc(bytes);
      while ((await writes(handle, piece)) === bytes);
    }
  } finally {
    await handle.close();
  }
}

/** How much of the piece fits. */
async function writes(handle: FileHandle, piece: Buffer): Promise<number> {
  try {
    return (await handle.write(piece)).bytesWritten;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOSPC") return 0;
    throw error;
  }
}
