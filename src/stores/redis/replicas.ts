import { setImmediate as nextTurn } from "node:timers/promises";
import type { ScriptRunner } from "./script-runner.js";

/** The most replicas that a grant can wait for. */
export const MOST_REPLICAS = 16;
const REPLICATION_TIMEOUT_MS = 1_000;

/**
 * Waits until enough replicas have received what the store's connection has written. WAIT covers the writes
 * of its own connection only.
 */
export class Replicas {
  readonly required: number;
  readonly #runner: ScriptRunner;
  /** Requests that were answered in one turn share one WAIT. */
  #waiting: Promise<void> | null = null;

  constructor(runner: ScriptRunner, required: number) {
    this.#runner = runner;
    this.required = required;
  }

  /**
   * Rejects unless the replicas have received the write of a script. `losses`: those of the connection before
   * the script was sent. WAIT must use the same connection: after a reconnection it may reach another server, or
   * follow a repeated script that had nothing to write.
   */
  async receive(losses: number): Promise<void> {
    if (this.required === 0) return;
    this.#waiting ??= nextTurn().then(() => {
      this.#waiting = null;
      return this.#wait();
    });
    await this.#waiting;
    const { connection } = this.#runner;
    if (connection.losses === losses) return;
    throw new Error(
      `the connection to ${connection.where} was lost before the replicas had received the write, so the grant, renewal or record does not count`,
    );
  }

  async #wait(): Promise<void> {
    const { connection } = this.#runner;
    const received = await connection
      .wait(this.required, REPLICATION_TIMEOUT_MS)
      .catch((error: unknown) => {
        throw this.#runner.toStoreError(error);
      });
    if (received >= this.required) return;
    throw new Error(
      `only ${received} of ${this.required} required replicas have received the write after ${REPLICATION_TIMEOUT_MS} ms, so the grant, renewal or record does not count; are that many replicas connected?`,
    );
  }
}
