import type {
  Awaitable,
  Claim,
  ClaimAnswer,
  HolderInfo,
  NameInfo,
  Push,
  Release,
  ReleaseAnswer,
  RenewAnswer,
  Renewal,
  Store,
  Traits,
} from "../../core/store.js";
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
}

const USUAL_DELAY_MS = 3;
/** The longest delay of a late message. */
export const LATE_MS = 6_000;

/**
 * The connection of one process to the store. Every message has its own delay and may overtake
 * others; it is lost, late or doubled according to the active faults. Pushes have a connection of
 * their own, which can be down or slow while commands work.
 */
export class Link implements Store {
  readonly traits: Traits;
  readonly #world: World;
  readonly #process: SimulatedProcess;
  readonly #store: Store;
  readonly #network: Network;
  /** The push callbacks by grantId, of all claims that may still wait. */
  readonly #waiting = new Map<string, (push: Push) => void>();
  #messages = 0;

  constructor(world: World, process: SimulatedProcess, store: Store, network: Network) {
    this.#world = world;
    this.#process = process;
    this.#store = store;
    this.#network = network;
    this.traits = { ...store.traits, store: "simulated", scope: "network" };
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    if (claim.queue) this.#waiting.set(claim.grantId, push);
    return this.#trip(() => this.#store.claim(claim, (one) => this.#push(() => push(one))));
  }

  renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    return this.#trip(() => this.#store.renew(renewals));
  }

  release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    for (const { grantId } of releases) this.#waiting.delete(grantId);
    return this.#trip(() => this.#store.release(releases));
  }

  revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    return this.#trip(() => this.#store.revoke(name, by));
  }

  resize(name: string, limit: number): Promise<number | null> {
    return this.#trip(() => this.#store.resize(name, limit));
  }

  inspect(name: string): Promise<NameInfo | null> {
    return this.#trip(() => this.#store.inspect(name));
  }

  list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    return this.#trip(() => this.#store.list(prefix, limit));
  }

  close(): void {}

  /** After the subscription is back, every waiter checks its claim, because pushes may have been missed. */
  resubscribed(): void {
    for (const push of this.#waiting.values()) this.#push(() => push({ kind: "look" }));
  }

  #trip<T>(command: () => Awaitable<T>): Promise<T> {
    const chance = this.#world.chance(`${this.#process.name} sends ${++this.#messages}`);
    const happens = (fault: MessageFault): boolean =>
      this.#network.isActive(fault) && chance.unit() < 0.5;
    const delayMs = (): number =>
      chance.unit() * (happens("messages are late") ? LATE_MS : USUAL_DELAY_MS);
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
      const arrive = (): void => {
        const freeAtMs = this.#network.storeAnswersAtMs();
        if (freeAtMs > this.#world.nowMs) {
          this.#world.at(freeAtMs + delayMs(), arrive);
          return;
        }
        const result = command();
        if (happens("replies are lost")) vanish();
        else answer(() => resolve(result));
      };
      if (happens("requests are lost")) {
        vanish();
        return;
      }
      this.#world.at(sentAtMs + delayMs(), arrive);
      if (happens("messages arrive twice")) this.#world.at(sentAtMs + delayMs(), arrive);
    });
  }

  #push(deliver: () => void): void {
    const chance = this.#world.chance(`pushed to ${this.#process.name}: ${++this.#messages}`);
    const happens = (fault: MessageFault): boolean =>
      this.#network.isActive(fault) && chance.unit() < 0.5;
    if (this.#network.isActive("subscription is down") || happens("pushes are lost")) return;
    for (let copies = happens("messages arrive twice") ? 2 : 1; copies > 0; copies--) {
      const isLate = happens("messages are late") || happens("pushes are late");
      const delayMs = chance.unit() * (isLate ? LATE_MS : USUAL_DELAY_MS);
      this.#world.at(this.#world.nowMs + delayMs, () => this.#process.deliver(deliver));
    }
  }
}
