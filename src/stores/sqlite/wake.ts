import { randomBytes } from "node:crypto";
import { connect, createServer, type Socket } from "node:net";
import { LOCK_LIMIT, type Push } from "../../core/store.js";
import { WakeFolder } from "./wake-folder.js";

/** Sent to a waiting process by the one whose step concerns a ticket of it: the ticket is a grant now, or its waiter has to look. */
export interface WakeMessage {
  readonly grantId: string;
  readonly push: Push;
}

const NAME_BYTES = 6;
const NAME = /^[\w-]{8}$/;
/** Suffix of a socket that does not listen with its rights yet. */
const UNREADY = ".new";
const OURS = /^[\w-]{8}(\.new)?$/;

const MESSAGE_BYTES = 1024 * 1024;
const SEND_TIMEOUT_MS = 2_000;
const LISTEN_ATTEMPTS = 3;
/** One sweep looks at this many entries of the folder, and tries this many sockets. */
const SWEEP_ENTRIES = 1_000;
const SWEEP_SOCKETS = 32;
/** An unready socket refuses connections too, so young ones are left alone. */
const SWEEP_AFTER_MS = 10 * 60_000;

/** A socket at which other processes on this machine push to the waiters of this one. */
export class WakeSocket {
  /** Its name in the wake folder. Tickets carry it, also where no socket can be had. */
  readonly name = randomBytes(NAME_BYTES).toString("base64url");
  readonly #file: string;
  readonly #onMessage: (message: WakeMessage) => void;
  #close: (() => void) | null = null;

  constructor(file: string, onMessage: (message: WakeMessage) => void) {
    this.#file = file;
    this.#onMessage = onMessage;
  }

  /** Whether it listens now: not every folder can have a socket that is safe. */
  open(): boolean {
    if (this.#close !== null && WakeFolder.has(this.#file, this.name)) return true;
    // Somebody has removed it, or the folder: nobody can reach it any more.
    this.close();
    // Another process may remove the folder as empty at any time before the socket is in it.
    for (let attempt = 0; attempt < LISTEN_ATTEMPTS; attempt++) {
      try {
        this.#close = listen(this.#file, this.name, this.#onMessage);
        sweep(this.#file).catch(() => {});
        return true;
      } catch {
        // Tried again; in the end, waiters look for themselves.
      }
    }
    return false;
  }

  close(): void {
    this.#close?.();
    this.#close = null;
  }
}

/** Listens under this name, and returns a function that ends it. */
function listen(file: string, name: string, onMessage: (message: WakeMessage) => void): () => void {
  const folder = WakeFolder.make(file);
  const server = createServer((socket) => readMessages(socket, onMessage));
  server.on("error", () => {});
  server.unref();
  const close = (): void => {
    folder.remove(name);
    // While the folder is open: this removes the entry under which the socket began to listen.
    server.close();
    folder.removeIfEmpty();
    folder.close();
  };
  try {
    // Exclusive: otherwise a cluster's primary process would listen, and has other descriptors.
    server.listen({ path: folder.at(name + UNREADY), exclusive: true });
    if (!server.listening) throw new Error("the socket does not listen");
    folder.shareSocket(name + UNREADY);
    // Under its name it listens from the first moment: a refusal there means that its process is gone.
    folder.rename(name + UNREADY, name);
  } catch (error) {
    close();
    throw error;
  }
  return close;
}

function readMessages(socket: Socket, onMessage: (message: WakeMessage) => void): void {
  let text = "";
  socket.setEncoding("utf8");
  socket.unref();
  socket.on("data", (chunk) => {
    text += chunk;
    if (text.length > MESSAGE_BYTES) socket.destroy();
    const lines = text.split("\n");
    text = lines.pop()!;
    for (const line of lines) {
      const message = parse(line);
      if (message !== null) onMessage(message);
    }
  });
  socket.on("error", () => socket.destroy());
}

/**
 * `sent`: on its way, so that the sender may exit. `refused`: nobody listens there any more, so the
 * waiter's process is gone. `unknown`: there is no such socket (the waiter found none that is safe, or
 * has the folder mounted elsewhere), or this user can't reach it.
 */
export type Sent = "sent" | "refused" | "unknown";

/** Sends messages to the socket of another process. */
export async function wake(
  file: string,
  name: string,
  messages: readonly WakeMessage[],
): Promise<Sent> {
  // The name comes out of the file, and must not lead out of the folder.
  if (!NAME.test(name)) return "unknown";
  let folder: WakeFolder | undefined;
  try {
    folder = WakeFolder.open(file);
    return await send(folder, name, messages.map((one) => `${serialize(one)}\n`).join(""));
  } catch {
    return "unknown";
  } finally {
    folder?.close();
  }
}

function send(folder: WakeFolder, name: string, text: string): Promise<Sent> {
  return new Promise((resolve) => {
    const socket = folder.withSocket(name, (path) => connect(path));
    socket.setTimeout(SEND_TIMEOUT_MS, () => socket.destroy());
    socket.on("error", (error: NodeJS.ErrnoException) =>
      resolve(error.code === "ECONNREFUSED" ? "refused" : "unknown"),
    );
    socket.on("close", () => resolve("unknown"));
    socket.end(text, (error?: Error | null) => {
      socket.unref();
      if (!error) resolve("sent");
    });
  });
}

/** Removes sockets that killed processes have left behind. */
async function sweep(file: string): Promise<void> {
  const folder = WakeFolder.open(file);
  try {
    const entries = folder.names().filter((name) => OURS.test(name));
    const old = entries.slice(0, SWEEP_ENTRIES).filter((name) => isOldSocket(folder, name));
    const sweeping = old.slice(0, SWEEP_SOCKETS).map(async (name) => {
      if ((await send(folder, name, "")) === "refused") folder.remove(name);
    });
    await Promise.allSettled(sweeping);
  } finally {
    folder.close();
  }
}

function isOldSocket(folder: WakeFolder, name: string): boolean {
  try {
    return folder.withSocket(name, (_, { mtimeMs }) => Date.now() - mtimeMs >= SWEEP_AFTER_MS);
  } catch {
    return false;
  }
}

/** Versions that know only grants ignore a message without a token. */
function serialize({ grantId, push }: WakeMessage): string {
  if (push.kind === "look") return JSON.stringify({ grantId, look: true });
  const { token, floor, ttlMs, seq } = push.grant;
  return JSON.stringify({ grantId, token: String(token), floor: String(floor), ttlMs, seq });
}

function parse(line: string): WakeMessage | null {
  let message: Record<string, unknown>;
  try {
    message = JSON.parse(line) as Record<string, unknown>;
  } catch {
    return null;
  }
  const { grantId, look, token, floor, ttlMs, seq } = message ?? {};
  const isToken = (value: unknown): value is string =>
    typeof value === "string" && /^[1-9]\d{0,18}$/.test(value);
  const isCount = (value: unknown): value is number =>
    typeof value === "number" && value > 0 && value < Number.MAX_SAFE_INTEGER;
  if (typeof grantId !== "string") return null;
  if (look === true) return { grantId, push: { kind: "look" } };
  if (!isToken(token) || !isToken(floor)) return null;
  if (!isCount(ttlMs) || !isCount(seq) || seq > LOCK_LIMIT) return null;
  const grant = { token: BigInt(token), floor: BigInt(floor), ttlMs, seq, handedOver: true };
  return { grantId, push: { kind: "granted", grant } };
}
