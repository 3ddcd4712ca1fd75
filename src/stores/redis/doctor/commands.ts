import { reasonOf } from "../../../core/cause.js";
import { HoldfastError, StoreUnavailableError } from "../../../core/errors.js";
import { within } from "../../shared/timeout.js";
import type { StoreUrl } from "../../url.js";
import { connectionOf } from "../client.js";
import type { Connection, OneServer } from "../connection.js";
import { openRedisClient } from "../open.js";
import type { Target } from "../target.js";

const REPLY_MS = 3_000;
/**
 * Timeout of a check. It is longer than `openRedisClient` takes to give up and to find out what answers there,
 * because that error says why.
 */
const OPEN_MS = 8_000;

/** The server's reply to a command, or its error message. */
type Reply = { readonly reply: unknown } | { readonly refused: string };

export const openConnection = async (url: StoreUrl, target?: Target): Promise<Connection> =>
  connectionOf(await withTimeout("a new connection", openRedisClient(url, target), OPEN_MS));

/** Rejects with StoreUnavailableError if there is no reply. A refusal is a reply. */
export const sendCommand = (
  server: Pick<OneServer, "command">,
  ...command: readonly string[]
): Promise<Reply> => replyTo(command[0]!, server.command(...command));

export async function replyTo(command: string, sent: Promise<unknown>): Promise<Reply> {
  try {
    return { reply: await withTimeout(command, sent) };
  } catch (error) {
    if (HoldfastError.is(error)) throw error;
    const refused = reasonOf(error);
    // A server's own words begin with a code; a client library's do not.
    if (/^-?[A-Z]+ /.test(refused)) return { refused };
    throw new StoreUnavailableError(`the connection to the Redis server is lost: ${refused}`, {
      cause: error,
    });
  }
}

/** Rejects with StoreUnavailableError after the time. */
export function withTimeout<T>(
  command: string,
  sent: Promise<T>,
  timeoutMs = REPLY_MS,
): Promise<T> {
  const text = `the Redis server accepts connections, but gave no answer to ${command} within ${timeoutMs} ms`;
  return within(timeoutMs, sent, () => new StoreUnavailableError(text));
}

/** Repeats only the server's code, such as NOPERM: the words after it may name keys and users. */
export const describeRefusal = (command: string, refused: string): string =>
  `${command} is refused: ${refused.split(" ", 1)[0]!}`;
