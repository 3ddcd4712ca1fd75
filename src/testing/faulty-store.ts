import type { Clock } from "../core/clock.js";
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
} from "../core/store.js";

/**
 * `hang`: never sent, never answered. `refuse`: not sent, and says so. `lose-reply`: done, never
 * answered. `fail-reply`: done, answered by an error. A number: done at once, answered so many ms late.
 */
export type Fault = "none" | "hang" | "refuse" | "lose-reply" | "fail-reply" | number;

/** A store between a core and the real one that goes wrong on command: one client's view of an outage. */
export class FaultyStore implements Store {
  readonly traits: Traits;
  faults: { claim: Fault; renew: Fault; release: Fault; push: "none" | "hold" } = {
    claim: "none",
    renew: "none",
    release: "none",
    push: "none",
  };
  /** Where the store can. What it tells is a push, and held back as one. */
  readonly observe?: NonNullable<Store["observe"]>;
  /** Commands that were sent, by kind. */
  readonly sent = { claim: 0, renew: 0, release: 0 };
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #heldPushes: (() => void)[] = [];

  constructor(store: Store, clock: Clock) {
    this.#store = store;
    this.#clock = clock;
    this.traits = store.traits;
    const { observe } = store;
    if (observe === undefined) return;
    this.observe = (name, changed) => observe.call(store, name, () => this.#deliver(changed));
  }

  /** The same fault for every command. */
  set all(fault: Fault) {
    this.faults = { ...this.faults, claim: fault, renew: fault, release: fault };
  }

  /** Delivers the pushes that were held back. */
  deliverPushes(): void {
    for (const deliver of this.#heldPushes.splice(0)) deliver();
  }

  claim(claim: Claim, push: (push: Push) => void): Awaitable<ClaimAnswer> {
    const pushed = (one: Push): void => this.#deliver(() => push(one));
    return this.#through("claim", () => this.#store.claim(claim, pushed));
  }

  renew(renewals: readonly Renewal[]): Awaitable<readonly RenewAnswer[]> {
    return this.#through("renew", () => this.#store.renew(renewals));
  }

  release(releases: readonly Release[]): Awaitable<readonly ReleaseAnswer[]> {
    return this.#through("release", () => this.#store.release(releases));
  }

  revoke(name: string, by: { holder: string; why: string }): Awaitable<readonly HolderInfo[]> {
    return this.#store.revoke(name, by);
  }

  inspect(name: string): Awaitable<NameInfo | null> {
    return this.#store.inspect(name);
  }

  list(prefix: string, limit: number): Awaitable<readonly NameInfo[]> {
    return this.#store.list(prefix, limit);
  }

  resize(name: string, limit: number): Awaitable<number | null> {
    return this.#store.resize(name, limit);
  }

  close(): Awaitable<void> {
    return this.#store.close();
  }

  #deliver(push: () => void): void {
    if (this.faults.push === "hold") this.#heldPushes.push(push);
    else push();
  }

  #through<T>(kind: "claim" | "renew" | "release", command: () => Awaitable<T>): Awaitable<T> {
    const fault = this.faults[kind];
    this.sent[kind]++;
    switch (fault) {
      case "none":
        return command();
      case "hang":
        return new Promise(() => {});
      case "refuse":
        return Promise.reject(new Error("connection refused"));
      case "lose-reply":
        command();
        return new Promise(() => {});
      case "fail-reply":
        return Promise.resolve(command()).then(() => {
          throw new Error("connection reset");
        });
      default: {
        const answer = Promise.resolve(command());
        return new Promise((resolve, reject) => {
          this.#clock.after(fault, () => answer.then(resolve, reject)).keepAlive(true);
        });
      }
    }
  }
}
