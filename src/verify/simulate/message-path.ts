import type { Awaitable } from "../../core/store.js";
import type { SimulatedProcess } from "./process.js";
import type { MessageFault } from "./schedule.js";
import type { World } from "./world.js";

/** The state of the network, and the process's control. */
export interface Network {
  isActive(fault: MessageFault): boolean;
  /** Stops the process in the middle of its turn for a while, at most once per turn. */
  stop(): void;
  /** Until when the store hangs; the present if it does not. */
  storeAnswersAtMs(): number;
  /** Whether the server is down: messages that arrive are lost. Default: never. */
  isDown?(): boolean;
}

const USUAL_DELAY_MS = 3;
/** The longest delay of a late message. */
export const LATE_MS = 6_000;

/**
 * The messages between one process and one server. Every message has its own delay and may overtake
 * others; it is lost, late or doubled according to the active faults. Pushes have a connection of
 * their own, which can be down or slow while commands work.
 */
export class MessagePath {
  readonly #world: World;
  readonly #process: SimulatedProcess;
  readonly #name: string;
  readonly #network: Network;
  readonly #lateMs: number;
  readonly #leastMs: number;
  readonly #answersLastCopy: boolean;
  #messages = 0;

  /**
   * `name`: the chance of each message depends on it. `answersLastCopy`: of a request that arrives twice, only the
   * last copy is answered, as by a client that sends it again when its connection is lost, and the reply with it.
   * `leastMs`: the least delay of a request, and of a reply.
   */
  constructor(
    world: World,
    process: SimulatedProcess,
    network: Network,
    { name = process.name, lateMs = LATE_MS, leastMs = 0, answersLastCopy = false } = {},
  ) {
    this.#world = world;
    this.#process = process;
    this.#name = name;
    this.#network = network;
    this.#lateMs = lateMs;
    this.#leastMs = leastMs;
    this.#answersLastCopy = answersLastCopy;
  }

  /** Sends a request, which the server carries out by `command` when it arrives, and returns its reply. */
  trip<T>(command: () => Awaitable<T>): Promise<T> {
    const chance = this.#world.chance(`${this.#name} sends ${++this.#messages}`);
    const happens = (fault: MessageFault): boolean =>
      this.#network.isActive(fault) && chance.unit() < 0.5;
    const delayMs = (): number =>
      this.#leastMs +
      chance.unit() * (happens("messages are late") ? this.#lateMs : USUAL_DELAY_MS);
    return new Promise((resolve, reject) => {
      const answer = (run: () => void): void => {
        this.#world.at(this.#world.nowMs + delayMs(), () => this.#process.deliver(run));
      };
      const fail = (why: string): void => answer(() => reject(new Error(why)));
      // A lost message shows as a reset connection, or not at all.
      const vanish = (): void => {
        if (chance.unit() < 0.5) fail("connection reset");
      };
      const stops = happens("stops between statements");
      // The process stops before it sends, or after.
      const stopsFirst = stops && chance.unit() < 0.5;
      if (stopsFirst) this.#network.stop();
      const sentAtMs = this.#process.nowMs;
      if (stops && !stopsFirst) this.#network.stop();
      if (happens("refused")) {
        fail("connection refused");
        return;
      }
      let copies = 1;
      const arrive = (): void => {
        if (this.#network.isDown?.()) {
          copies--;
          vanish();
          return;
        }
        const freeAtMs = this.#network.storeAnswersAtMs();
        if (freeAtMs > this.#world.nowMs) {
          this.#world.at(freeAtMs + delayMs(), arrive);
          return;
        }
        const result = command();
        if (--copies > 0 && this.#answersLastCopy) return;
        if (happens("replies are lost")) vanish();
        else answer(() => resolve(result));
      };
      if (happens("requests are lost")) {
        vanish();
        return;
      }
      this.#world.at(sentAtMs + delayMs(), arrive);
      if (!happens("messages arrive twice")) return;
      copies++;
      this.#world.at(sentAtMs + delayMs(), arrive);
    });
  }

  /** Sends a message of the server to the process. */
  push(deliver: () => void): void {
    const chance = this.#world.chance(`pushed to ${this.#name}: ${++this.#messages}`);
    const happens = (fault: MessageFault): boolean =>
      this.#network.isActive(fault) && chance.unit() < 0.5;
    if (this.#network.isActive("subscription is down") || happens("pushes are lost")) return;
    for (let copies = happens("messages arrive twice") ? 2 : 1; copies > 0; copies--) {
      const isLate = happens("messages are late") || happens("pushes are late");
      const delayMs = chance.unit() * (isLate ? this.#lateMs : USUAL_DELAY_MS);
      this.#world.at(this.#world.nowMs + delayMs, () => this.#process.deliver(deliver));
    }
  }
}
