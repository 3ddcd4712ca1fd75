import { createHash, randomBytes } from "node:crypto";
import { chmodSync, mkdirSync, readdirSync, rmdirSync, rmSync, statSync } from "node:fs";
import { connect, createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Grant, LOCK_LIMIT } from "../../core/store.js";

/** What a releasing process tells a waiting one: which of its tickets is now a grant, and the grant. */
export interface Handover {
  readonly grantId: string;
  readonly grant: Grant;
}

/** `sun_path` holds 104 bytes on macOS and 108 on Linux. */
const ADDRESS_BYTES = 100;
const MESSAGE_BYTES = 1024 * 1024;
const HAND_TIMEOUT_MS = 2_000;
const SWEEP_SOCKETS = 32;
/** Young ones are left alone: one that is bound and does not listen yet refuses too. */
const SWEEP_AFTER_MS = 10 * 60_000;

/** A socket at which other processes on this machine hand over grants to the waiters of this one. */
export class WakeSocket {
  readonly #file: string;
  readonly #onHandover: (handover: Handover) => void;
  #folder = "";
  #server: Server | null = null;
  #opening: Promise<string> | null = null;
  #closes = 0;

  constructor(file: string, onHandover: (handover: Handover) => void) {
    this.#file = file;
    this.#onHandover = onHandover;
  }

  /** Its name in the folder, which may be mounted elsewhere for others; empty when no socket can be had here: then waiters look for themselves. */
  open(): Promise<string> {
    this.#opening ??= this.#open().catch(() => "");
    return this.#opening;
  }

  close(): void {
    this.#closes++;
    this.#opening = null;
    this.#server?.close();
    this.#server = null;
    this.#removeFolder();
  }

  #removeFolder(): void {
    try {
      rmdirSync(this.#folder);
    } catch {
      // Others wait there too, or it was never made.
    }
  }

  async #open(): Promise<string> {
    // Whoever may use the file may wake its waiters, and nobody else.
    const fileMode = statSync(this.#file).mode & 0o666;
    const closes = this.#closes;
    this.#folder = wakeFolder(this.#file);
    const name = randomBytes(6).toString("base64url");
    const address = join(this.#folder, name);
    const server = createServer((socket) => {
      let text = "";
      socket.setEncoding("utf8");
      socket.unref();
      socket.on("data", (chunk) => {
        text += chunk;
        if (text.length > MESSAGE_BYTES) socket.destroy();
        const lines = text.split("\n");
        text = lines.pop()!;
        for (const line of lines) {
          const handover = parseHandover(line);
          if (handover !== null) this.#onHandover(handover);
        }
      });
      socket.on("error", () => socket.destroy());
    });
    server.unref();
    // Made again if another process has just removed it as empty.
    for (let attempt = 0; ; attempt++) {
      try {
        const made = mkdirSync(this.#folder, { recursive: true });
        if (made !== undefined) chmodSync(this.#folder, folderMode(fileMode));
        sweepSockets(this.#folder);
        await new Promise<void>((resolve, reject) => {
          server.once("error", reject);
          server.listen(address, resolve);
        });
        chmodSync(address, fileMode);
        break;
      } catch (error) {
        if (attempt === 3) throw error;
      }
    }
    server.on("error", () => {});
    if (this.#closes !== closes) {
      server.close();
      this.#removeFolder();
      return "";
    }
    this.#server = server;
    return name;
  }
}

/**
 * Hands over to another process: `told` once it is on its way, so that the teller may exit. `dead`:
 * nobody listens there any more, and its tickets and grants need not wait for their expiry.
 */
export function hand(
  file: string,
  name: string,
  handovers: readonly Handover[],
): Promise<"told" | "dead"> {
  return new Promise((resolve) => {
    const socket = connect(join(wakeFolder(file), name));
    socket.setTimeout(HAND_TIMEOUT_MS, () => socket.destroy());
    socket.on("error", (error) => resolve(isRefused(error) ? "dead" : "told"));
    socket.on("close", () => resolve("told"));
    socket.end(handovers.map((one) => `${serialize(one)}\n`).join(""), () => {
      socket.unref();
      resolve("told");
    });
  });
}

/** A process that was killed leaves its socket's file behind: removed where nobody answers. */
function sweepSockets(folder: string): void {
  let swept = 0;
  for (const entry of readdirSync(folder)) {
    const address = join(folder, entry);
    const stat = statSync(address, { throwIfNoEntry: false });
    if (stat === undefined || Date.now() - stat.mtimeMs < SWEEP_AFTER_MS) continue;
    if (swept++ === SWEEP_SOCKETS) return;
    const socket = connect(address);
    socket.unref();
    socket.on("error", (error) => {
      if (isRefused(error)) rmSync(address, { force: true });
    });
    socket.end();
  }
}

/** A missing file proves nothing: the folder may be mounted elsewhere here, or was cleaned up. */
const isRefused = (error: NodeJS.ErrnoException): boolean => error.code === "ECONNREFUSED";

function serialize({ grantId, grant }: Handover): string {
  const { token, floor, ttlMs, seq } = grant;
  return JSON.stringify({ grantId, token: String(token), floor: String(floor), ttlMs, seq });
}

function parseHandover(line: string): Handover | null {
  let message: Record<string, unknown>;
  try {
    message = JSON.parse(line) as Record<string, unknown>;
  } catch {
    return null;
  }
  const { grantId, token, floor, ttlMs, seq } = message ?? {};
  const isToken = (value: unknown): value is string =>
    typeof value === "string" && /^\d{1,19}$/.test(value);
  const isCount = (value: unknown): value is number =>
    typeof value === "number" && value > 0 && value < Number.MAX_SAFE_INTEGER;
  if (typeof grantId !== "string" || !isToken(token) || !isToken(floor)) return null;
  if (!isCount(ttlMs) || !isCount(seq) || seq > LOCK_LIMIT) return null;
  return {
    grantId,
    grant: { token: BigInt(token), floor: BigInt(floor), ttlMs, seq, handedOver: true },
  };
}

/** Beside the file, so that containers that share it share this too; elsewhere only if the path is too long. */
function wakeFolder(file: string): string {
  const beside = `${file}-wake`;
  if (Buffer.byteLength(beside) + 9 <= ADDRESS_BYTES) return beside;
  const hash = createHash("sha256").update(file).digest("base64url").slice(0, 16);
  return join(tmpdir(), `holdfast-${hash}`);
}

/** May be searched by whoever may read. */
const folderMode = (fileMode: number): number => fileMode | ((fileMode & 0o444) >> 2);
