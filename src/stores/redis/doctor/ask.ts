import { reasonOf } from "../../../core/doctor.js";
import { HoldfastError, StoreUnavailableError } from "../../../core/errors.js";
import type { StoreUrl } from "../../../core/url.js";
import { type Connection, connectionOf, type OneServer } from "../client.js";
import { openRedisClient } from "../open.js";

const ANSWER_MS = 3_000;
/** Longer than a client library takes to give up by itself. */
const OPEN_MS = 6_000;

/** What a command was answered with, or the server's words for why not. */
type Answer = { readonly reply: unknown } | { readonly refused: string };

export const open = async (url: StoreUrl): Promise<Connection> =>
  connectionOf(await inTime("a new connection", openRedisClient(url), OPEN_MS));

/** Rejects if the server does not answer; that it says no is an answer. */
export const ask = (
  server: Pick<OneServer, "command">,
  ...command: readonly string[]
): Promise<Answer> => answerOf(command[0]!, server.command(...command));

export async function answerOf(what: string, answering: Promise<unknown>): Promise<Answer> {
  try {
    return { reply: await inTime(what, answering) };
  } catch (error) {
    // The server's own words begin with a code; a client's do not.
    const text = reasonOf(error);
    if (HoldfastError.is(error) || !/^-?[A-Z]+ /.test(text)) throw error;
    return { refused: text };
  }
}

export async function inTime<T>(what: string, answering: Promise<T>, ms = ANSWER_MS): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      const text = `the Redis server accepts connections, but gave no answer to ${what} within ${ms} ms`;
      reject(new StoreUnavailableError(text));
    }, ms);
  });
  try {
    return await Promise.race([answering, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** With the code alone, such as NOPERM: what follows it may name keys and users. */
export const refusal = (command: string, { refused }: { readonly refused: string }): string =>
  `${command} is refused: ${refused.split(" ", 1)[0]!}`;
