import { randomBytes } from "node:crypto";
import { connect, createServer, type Socket } from "node:net";
import type { Push } from "../../core/store.js";
import { readPushedGrant } from "../shared/pushed-grant.js";
import { WakeFolder } from "./wake-folder.js";

/** A push to the waiter with this grantId, sent by the process whose step has caused it. */
export interface SocketMessage {
  readonly grantId: string;
  readonly push: Push;
}

const NAME_BYTES = 6;
const NAME = /^[\w-]{8}$/;
/** Suffix of a socket that does not listen yet, or has not got its rights. */
const UNREADY = ".new";
const NAME_OR_UNREADY = /^[\w-]{8}(\.new)?$/;

const MAX_MESSAGE_BYTES = 1024 * 1024;
const SEND_TIMEOUT_MS = 2_000;
const LISTEN_ATTEMPTS = 3;
/** One sweep checks at most this many entries of the folder, and connects to this many sockets. */
const SWEEP_ENTRIES = 1_000;
const SWEEP_SOCKETS = 32;
/** A sweep leaves younger sockets alone: one that is not ready refuses connections too. */
const SWEEP_AFTER_MS = 10 * 60_000;

/** The socket at which this process receives pushes from other processes of the machine. */
export class PushSocket {
  /** Its name in the wake folder. Every ticket carries it, also where no socket can be opened. */
  readonly name = randomBytes(NAME_BYTES).toString("base64url");
  readonly #file: string;
  readonly #onMessage: (message: SocketMessage) => void;
  #close: (() => void) | null = null;

  constructor(file: string, onMessage: (message: SocketMessage) => void) {
    this.#file = file;
    this.#onMessage = onMessage;
  }

  /** Begins to listen. False: no socket can be opened, or other users could put another in its place. */
  open(): boolean {
    if (this.#close !== null && WakeFolder.has(this.#file, this.name)) return true;
    // The socket or the folder was deleted, so that no process can reach it any more.
    this.close();
    // Another process may remove the folder as empty at any time before the socket is in it.
    for (let attempt = 0; attempt < LISTEN_ATTEMPTS; attempt++) {
      try {
        this.#close = listen(this.#file, this.name, this.#onMessage);
        sweep(this.#file).catch(() => {});
        return true;
      } catch {
        // After the last attempt, the store lets its waiters poll.
      }
    }
    return false;
  }

  close(): void {
    this.#close?.();
    this.#close = null;
  }
}

/** Listens under this name, and returns a function that closes the socket. */
function listen(
  file: string,
  name: string,
  onMessage: (message: SocketMessage) => void,
): () => void {
  const folder = WakeFolder.make(file);
  const server = createServer((socket) => readMessages(socket, onMessage));
  server.on("error", () => {});
  server.unref();
  const close = (): void => {
    folder.remove(name);
    // The socket closes before the folder, because Node removes the entry under which the socket began to listen.
    server.close();
    folder.removeIfEmpty();
    folder.close();
  };
  try {
    // `exclusive`, because in a cluster of Node the primary process would listen instead, where this descriptor is
    // not open.
    server.listen({ path: folder.at(name + UNREADY), exclusive: true });
    if (!server.listening) throw new Error("the socket does not listen");
    folder.shareSocket(name + UNREADY);
    // The socket gets its name once it listens, so that a refused connection means that its process is gone.
    folder.rename(name + UNREADY, name);
  } catch (error) {
    close();
    throw error;
  }
  return close;
}

function readMessages(socket: Socket, onMessage: (message: SocketMessage) => void): void {
  let text = "";
  socket.setEncoding("utf8");
  socket.unref();
  socket.on("data", (chunk) => {
    text += chunk;
    if (text.length > MAX_MESSAGE_BYTES) socket.destroy();
    const lines = text.split("\n");
    text = lines.pop()!;
    for (const line of lines) {
      const message = parseSocketMessage(line);
      if (message !== null) onMessage(message);
    }
  });
  socket.on("error", () => socket.destroy());
}

/**
 * `sent`: the system has the message, and this process may exit. `refused`: the process that listened
 * there is gone. `unknown`: there is no such socket (the waiter could not open one, or has the folder
 * mounted elsewhere), or this user can't reach it.
 */
type SendOutcome = "sent" | "refused" | "unknown";

export async function sendPushes(
  file: string,
  socketName: string,
  messages: readonly SocketMessage[],
): Promise<SendOutcome> {
  // The name comes from the table, and must not lead out of the folder.
  if (!NAME.test(socketName)) return "unknown";
  let folder: WakeFolder | undefined;
  try {
    folder = WakeFolder.open(file);
    return await send(folder, socketName, messages.map((one) => `${serialize(one)}\n`).join(""));
  } catch {
    return "unknown";
  } finally {
    folder?.close();
  }
}

function send(folder: WakeFolder, name: string, text: string): Promise<SendOutcome> {
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

/** Removes the sockets of processes that were killed. */
async function sweep(file: string): Promise<void> {
  const folder = WakeFolder.open(file);
  try {
    const entries = folder.names().filter((name) => NAME_OR_UNREADY.test(name));
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

/** Earlier versions of Holdfast ignore a message without a token. */
function serialize({ grantId, push }: SocketMessage): string {
  if (push.kind !== "granted") return JSON.stringify({ grantId, look: true });
  const { token, floor, ttlMs, seq } = push.grant;
  return JSON.stringify({ grantId, token: String(token), floor: String(floor), ttlMs, seq });
}

/** Null if the line is no message: then it is ignored. */
export function parseSocketMessage(line: string): SocketMessage | null {
  let message: Record<string, unknown>;
  try {
    message = JSON.parse(line) as Record<string, unknown>;
  } catch {
    return null;
  }
  const { grantId, look, ...numbers } = message ?? {};
  if (typeof grantId !== "string") return null;
  if (look === true) return { grantId, push: { kind: "look" } };
  const grant = readPushedGrant(numbers);
  return grant === null ? null : { grantId, push: { kind: "granted", grant } };
}
