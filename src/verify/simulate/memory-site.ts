import type { NameInfo, Store } from "../../core/store.js";
import { MemoryStore } from "../../stores/memory/index.js";
import { Rule } from "../../stores/rule.js";
import { delegate } from "../../testing/delegate.js";
import type { Mutant } from "../../testing/mutants.js";
import { malformedBatches } from "./batches.js";
import { Link } from "./link.js";
import type { Network } from "./message-path.js";
import { Observer } from "./observe.js";
import { polledStore } from "./polled-store.js";
import type { StoreTrouble } from "./schedule.js";
import { clientName, type Site, type SiteSurroundings } from "./site.js";
import { skippingRule } from "./skipping-rule.js";

/** One memory store, in the process of the clients or behind a link for each of them. */
export class MemorySite implements Site {
  readonly excuses = [];
  readonly #around: SiteSurroundings;
  readonly #store: MemoryStore;
  readonly #observer: Observer;
  readonly #stores: readonly Store[];
  /** By client; undefined where the store is in the process. */
  readonly #links: readonly (Link | undefined)[];
  #wallAheadMs = Date.UTC(2030, 0, 1);

  constructor(around: SiteSurroundings, mutant: Mutant) {
    const { world, schedule, processes, record } = around;
    this.#around = around;
    this.#observer = new Observer(world, record);
    const clock = {
      nowMs: () => world.nowMs,
      wallMs: () => world.nowMs + this.#wallAheadMs,
    };
    this.#store = new MemoryStore(clock, this.#ruleFor(mutant));
    const atStore = this.#placed(this.#observer.atStore(this.#store));
    const replying = schedule.rates.map((_, client) =>
      malformedBatches(world, clientName(client), atStore, (fault) =>
        around.isActive(fault, client),
      ),
    );
    this.#links = processes.map((process, client) =>
      schedule.place === "process"
        ? undefined
        : new Link(world, process, replying[client]!, this.#networkOf(client)),
    );
    this.#stores = replying.map((store, client) => this.#links[client] ?? store);
  }

  storeFor(client: number): Store {
    return this.#stores[client]!;
  }

  observe(_client: number, store: Store): Store {
    return this.#observer.atClient(store);
  }

  list(): readonly NameInfo[] {
    return this.#store.list("", 100);
  }

  plan(trouble: StoreTrouble): void {
    const { world, record, window } = this.#around;
    if (trouble.kind === "store hangs") window("the store hangs", trouble);
    if (trouble.kind !== "store's wall clock jumps") return;
    const { fromMs, byMs } = trouble;
    world.at(fromMs, () => {
      this.#wallAheadMs += byMs;
      record({ kind: "clock-set", atMs: fromMs, byMs });
    });
  }

  resubscribe(client: number): void {
    this.#links[client]?.resubscribed();
  }

  verdicts(): readonly [] {
    return [];
  }

  #networkOf(client: number): Network {
    const { world, schedule, isActive, stop } = this.#around;
    return {
      isActive: (fault) => isActive(fault, client),
      stop: () => stop(client),
      storeAnswersAtMs: () =>
        schedule.troubles.reduce(
          (latest, one) =>
            one.kind === "store hangs" && one.fromMs <= world.nowMs && world.nowMs < one.toMs
              ? Math.max(latest, one.toMs)
              : latest,
          world.nowMs,
        ),
    };
  }

  #ruleFor({ rule = Rule, skipsAnswered }: Mutant): typeof Rule {
    const { schedule, processes, isActive } = this.#around;
    if (schedule.place !== "skipping") return rule;
    const reaches = (holder: string): boolean => {
      const client = processes.findIndex((_, number) => holder.startsWith(clientName(number)));
      return !isActive("subscription is down", client) && !processes[client]!.isDead;
    };
    const skipped = this.#observer.skipped.bind(this.#observer);
    return skippingRule(rule, { reaches, skipped }, skipsAnswered);
  }

  /** Applies the schedule's place and traits to the store. */
  #placed(store: Store): Store {
    const { place, traits } = this.#around.schedule;
    const described = { ...delegate(store), traits: { ...store.traits, ...traits } };
    return place === "polled" || place === "ticketless"
      ? polledStore(described, { queues: place === "polled" })
      : described;
  }
}
