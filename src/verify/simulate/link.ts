import type {
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
import { MessagePath, type Network } from "./message-path.js";
import type { SimulatedProcess } from "./process.js";
import type { World } from "./world.js";

/** The connection of one process to the store. */
export class Link implements Store {
  readonly traits: Traits;
  readonly #store: Store;
  readonly #path: MessagePath;
  /** The push callbacks by grantId, of all claims that may still wait. */
  readonly #waiting = new Map<string, (push: Push) => void>();

  constructor(world: World, process: SimulatedProcess, store: Store, network: Network) {
    this.#store = store;
    this.#path = new MessagePath(world, process, network);
    this.traits = { ...store.traits, store: "simulated", scope: "network" };
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    if (claim.queue) this.#waiting.set(claim.grantId, push);
    const pushed = (one: Push): void => this.#path.push(() => push(one));
    return this.#path.trip(() => this.#store.claim(claim, pushed));
  }

  renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    return this.#path.trip(() => this.#store.renew(renewals));
  }

  release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    for (const { grantId } of releases) this.#waiting.delete(grantId);
    return this.#path.trip(() => this.#store.release(releases));
  }

  revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    return this.#path.trip(() => this.#store.revoke(name, by));
  }

  resize(name: string, limit: number): Promise<number | null> {
    return this.#path.trip(() => this.#store.resize(name, limit));
  }

  inspect(name: string): Promise<NameInfo | null> {
    return this.#path.trip(() => this.#store.inspect(name));
  }

  list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    return this.#path.trip(() => this.#store.list(prefix, limit));
  }

  close(): void {}

  /** After the subscription is back, every waiter checks its claim, because pushes may have been missed. */
  resubscribed(): void {
    for (const push of this.#waiting.values()) this.#path.push(() => push({ kind: "look" }));
  }
}
