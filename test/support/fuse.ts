import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { setTimeout as pause } from "node:timers/promises";

const [LOOKUP, FORGET, GETATTR, STATFS, INIT] = [1, 2, 3, 17, 26];
const [ENOENT, ENOSYS] = [2, 38];
const [HEADER_BYTES, REQUEST_BYTES] = [16, 256 * 1024];

/** Whether this process may do what `runOnFuse` does. */
export const canMountFuse = (): boolean =>
  process.platform === "linux" && process.getuid?.() === 0 && existsSync("/dev/fuse");

/** Runs Node with these arguments where an empty FUSE file system is mounted on the folder; resolves to its output. */
export async function runOnFuse(folder: string, args: readonly string[]): Promise<string> {
  const fuse = await EmptyFuse.open();
  try {
    const options = "fd=3,rootmode=40000,user_id=0,group_id=0";
    const mount = `mount -i -t fuse -o ${options} holdfast-test "$0" && exec "$@" 3>&-`;
    const child = spawn(
      "unshare",
      ["--mount", "--propagation", "private", "sh", "-c", mount, folder, process.execPath, ...args],
      { stdio: ["ignore", "pipe", "pipe", fuse.fd] },
    );
    const parts: string[] = [];
    for (const stream of [child.stdout!, child.stderr!]) {
      stream.on("data", (part) => parts.push(String(part)));
    }
    await once(child, "close");
    return parts.join("");
  } finally {
    await fuse.close();
  }
}

/** An empty FUSE file system without a daemon, for the process that mounts it with this descriptor. */
class EmptyFuse {
  readonly #device: FileHandle;
  #closed = false;

  static async open(): Promise<EmptyFuse> {
    return new EmptyFuse(await open("/dev/fuse", "r+"));
  }

  private constructor(device: FileHandle) {
    this.#device = device;
    void this.#serve();
  }

  get fd(): number {
    return this.#device.fd;
  }

  /** Resolves when nothing is mounted any more. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.#device.close();
  }

  async #serve(): Promise<void> {
    const request = Buffer.alloc(REQUEST_BYTES);
    while (!this.#closed) {
      try {
        await this.#device.read(request, 0, request.length, null);
        const reply = answer(request);
        if (reply !== null) await this.#device.write(reply);
      } catch (error) {
        // EPERM: not mounted yet; ENODEV: no longer.
        if ((error as NodeJS.ErrnoException).code !== "EPERM") return;
        await pause(5);
      }
    }
  }
}

function answer(request: Buffer): Buffer | null {
  switch (request.readUInt32LE(4)) {
    case INIT: {
      const body = Buffer.alloc(64);
      body.writeUInt32LE(7, 0);
      body.writeUInt32LE(31, 4);
      body.writeUInt32LE(4_096, 20);
      return reply(request, 0, body);
    }
    case GETATTR: {
      const body = Buffer.alloc(104);
      body.writeBigUInt64LE(1n, 16);
      body.writeUInt32LE(0o40777, 16 + 60);
      body.writeUInt32LE(2, 16 + 64);
      return reply(request, 0, body);
    }
    case STATFS:
      return reply(request, 0, Buffer.alloc(80));
    case LOOKUP:
      return reply(request, ENOENT!);
    case FORGET:
      return null;
    default:
      return reply(request, ENOSYS!);
  }
}

function reply(request: Buffer, errno: number, body = Buffer.alloc(0)): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32LE(HEADER_BYTES + body.length, 0);
  header.writeInt32LE(-errno, 4);
  request.copy(header, 8, 8, 16);
  return Buffer.concat([header, body]);
}
