import type { Clock } from "../core/clock.js";
import type { Records } from "../core/records.js";
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
 * `hang`: the command is not sent, and its promise never settles. `refuse`: not sent, and rejects.
 * `lose-reply`: executed, and never settles. `fail-reply`: executed, and rejects. A number: executed
 * at once, and the reply arrives that many milliseconds later.
 */
export type Fault = "none" | "hang" | "refuse" | "lose-reply" | "fail-reply" | number;

/** Wraps the store of one client, and makes its commands and pushes fail on demand: an outage as one client sees it. */
export class FaultyStore implements Store {
  readonly traits: Traits;
  /** The fault of each kind of command, and whether pushes are held back; all "none" at first. */
  faults: { claim: Fault; renew: Fault; release: Fault; records: Fault; push: "none" | "hold" } = {
    claim: "none",
    renew: "none",
    release: "none",
    records: "none",
    push: "none",
  };
  /** Present if the store has it. Its notifications are held back like pushes. */
  readonly observe?: NonNullable<Store["observe"]>;
  /** Present if the store has it. All its commands are of the kind `records`. */
  readonly records?: Records;
  /** How many commands the client has sent, by kind. */
  readonly sent = { claim: 0, renew: 0, release: 0, records: 0 };
  /** How many commands were sent without a fault, and are not answered yet. */
  underWay = 0;
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #heldPushes: (() => void)[] = [];

  constructor(store: Store, clock: Clock) {
    this.#store = store;
    this.#clock = clock;
    this.traits = store.traits;
    const { observe, records } = store;
    if (records !== undefined) {
      this.records = {
        read: (key) => this.#through("records", () => records.read(key)),
        write: (write) => this.#through("records", () => records.write(write)),
        take: (take) => this.#through("records", () => records.take(take)),
      };
    }
    if (observe === undefined) return;
    this.observe = (name, changed) => observe.call(store, name, () => this.#deliver(changed));
  }

  /** Sets the same fault for every kind of command; pushes keep theirs. */
  set all(fault: Fault) {
    this.faults = { ...this.faults, claim: fault, renew: fault, release: fault, records: fault };
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

  open(): void {
    this.#store.open?.();
  }

  close(): Awaitable<void> {
    return this.#store.close();
  }

  #deliver(push: () => void): void {
    if (this.faults.push === "hold") this.#heldPushes.push(push);
    else push();
  }

  #counted<T>(answer: Awaitable<T>): Awaitable<T> {
    if (!(answer instanceof Promise)) return answer;
    this.underWay++;
    return answer.finally(() => {
      this.underWay--;
    });
  }

  #through<T>(kind: keyof FaultyStore["sent"], command: () => Awaitable<T>): Awaitable<T> {
    const fault = this.faults[kind];
    this.sent[kind]++;
    switch (fault) {
      case "none":
        return this.#counted(command());
      case "hang":
        return new Promise(() => {});
      case "refuse":
        return Promise.reject(new Error("connection refused"));
      case "lose-reply":
        // A store that is closed meanwhile rejects, and nobody handles that rejection.
        Promise.resolve(command()).catch(() => {});
        return new Promise(() => {});
      case "fail-reply":
        return Promise.resolve(command()).then(() => {
          throw new Error("connection reset");
        });
      default: {
        const answer = Promise.resolve(command());
        answer.catch(() => {});
        return new Promise((resolve, reject) => {
          this.#clock.after(fault, () => answer.then(resolve, reject)).keepAlive(true);
        });
      }
    }
  }
}
