import { slices } from "../shared/slices.js";
import { type Batched, settleBatch, TurnBatcher } from "../shared/turn-batcher.js";
import { bySlot, type ScriptRunner, textOf } from "./script-runner.js";
import type { Script } from "./scripts.js";

/** The most requests in one script: with more, the server would wait while the client encodes and decodes. */
const REQUESTS_PER_SCRIPT = 16;

interface Request {
  readonly keys: readonly string[];
  readonly args: readonly string[];
  read(reply: string): unknown;
}

/** The first arguments of a script. `toLoad` replaces the usual ones if the server has yet to load the script. */
export interface FirstArgs {
  usual(): readonly string[];
  toLoad?(): readonly string[];
  /** Called when a script has failed as a whole. */
  failed?(error: unknown): void;
}

/** Sends the requests of one turn of the event loop in one script; in a cluster, in one for each slot. */
export class RequestBatcher {
  readonly #runner: ScriptRunner;
  readonly #script: Script;
  readonly #firstArgs: FirstArgs;
  readonly #requests = new TurnBatcher<Request, unknown>((requests) => this.#sendAll(requests));

  constructor(runner: ScriptRunner, script: Script, firstArgs: FirstArgs) {
    this.#runner = runner;
    this.#script = script;
    this.#firstArgs = firstArgs;
  }

  /** The script replies with one text for each request; one that begins with "!" is an error. */
  send<T>(
    keys: readonly string[],
    args: readonly string[],
    read: (reply: string) => T,
  ): Promise<T> {
    return this.#requests.send({ keys, args, read }) as Promise<T>;
  }

  #sendAll(requests: readonly Batched<Request, unknown>[]): void {
    // In the most usual case, nothing has to be grouped or copied.
    if (requests.length === 1) {
      const { keys, args } = requests[0]!.request;
      this.#sendBatch(requests, keys, args);
      return;
    }
    const { cluster } = this.#runner.connection;
    const groups = cluster ? bySlot(requests, ({ request }) => request.keys[0]!) : [requests];
    for (const group of groups) {
      for (const batch of slices(group, REQUESTS_PER_SCRIPT)) {
        const keys = batch.flatMap(({ request }) => request.keys);
        const args = batch.flatMap(({ request }) => request.args);
        this.#sendBatch(batch, keys, args);
      }
    }
  }

  #sendBatch(
    batch: readonly Batched<Request, unknown>[],
    keys: readonly string[],
    args: readonly string[],
  ): void {
    const { usual, toLoad, failed } = this.#firstArgs;
    const argsToLoad = toLoad && (() => [...toLoad(), ...args]);
    const { connection } = this.#runner;
    settleBatch(batch, connection.run(this.#script, keys, [...usual(), ...args], argsToLoad), {
      replyTo: (replies, at) => {
        // The reply to a single request is not a list.
        const text = textOf(Array.isArray(replies) ? replies[at] : replies);
        if (text.charCodeAt(0) === EXCLAMATION) throw this.#runner.caughtError(text.slice(1));
        return batch[at]!.request.read(text);
      },
      toError: (error) => {
        failed?.(error);
        return this.#runner.toStoreError(error);
      },
    });
  }
}

const EXCLAMATION = 0x21;
