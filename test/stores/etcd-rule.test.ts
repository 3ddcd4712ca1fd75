import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import {
  LOCK_LIMIT,
  type Position,
  type Push,
  type Release,
  type Store,
} from "../../src/core/store.js";
import { type EtcdStore, etcdStore, openEtcdClient } from "../../src/stores/etcd/index.js";
import { MemoryStore } from "../../src/stores/memory.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { runs } from "../support/chance.js";
import { describeWith } from "../support/needs.js";
import { claimOf } from "../support/redis.js";
import { Story } from "../support/story.js";
import { until } from "../support/worker.js";

/**
 * The queue in etcd against the rule: the same random steps on both, one after the other, and the
 * same answers, holders, queue and order of tokens. Everything outlasts the test: etcd's seconds are
 * too long to wait for an end here.
 */
const LONG_MS = 3_600_000;
/** On a busy machine. */
const TOLD_MS = 10_000;
const TIMES = { timeout: 120_000 };

interface Of {
  readonly name: number;
  /** Of both names, which were asked for at once. */
  readonly both: boolean;
  readonly id: number;
}

type Step =
  | (Of & { do: "claim"; seq: number; kind: number; closes: boolean; queue: boolean })
  | (Of & { do: "release"; unused: boolean })
  | { do: "renew"; items: (Of & { seq: number; other: boolean })[] }
  | { do: "revoke"; name: number }
  | { do: "resize"; name: number; limit: number };

const LOCK = [
  { permits: LOCK_LIMIT, limit: LOCK_LIMIT },
  { permits: 1, limit: LOCK_LIMIT },
];
const SEMAPHORE = [
  { permits: 1, limit: 3 },
  { permits: 2, limit: 3 },
  { permits: 3, limit: 3 },
];
/** What a run is about: so they meet more often than by chance. */
const KINDS = [
  LOCK,
  SEMAPHORE,
  [...SEMAPHORE, { permits: 1, limit: 2 }, { permits: 1, limit: 1 }],
  [...LOCK, ...SEMAPHORE],
];
type Kinds = (typeof KINDS)[number];

const IDS = 4;
const rarely = fc.integer({ min: 0, max: 4 }).map((n) => n === 0);
const of = { name: fc.nat(1), both: rarely, id: fc.nat(IDS - 1) };
const seq = fc.integer({ min: 1, max: 4 });
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant("claim" as const),
      ...of,
      seq,
      kind: fc.nat(4),
      closes: fc.nat(2).map((n) => n === 0),
      queue: fc.boolean(),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constant("release" as const), ...of, unused: fc.boolean() }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant("renew" as const),
      items: fc.uniqueArray(fc.record({ ...of, seq, other: rarely }), {
        minLength: 1,
        maxLength: 4,
        selector: ({ name, both, id }) => `${name} ${both} ${id}`,
      }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("revoke" as const), name: of.name }) },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant("resize" as const),
      name: of.name,
      limit: fc.integer({ min: 1, max: 4 }),
    }),
  },
);

/** A store at work by two clients, and what it said, without what depends on time. */
class Side {
  /** In the answer to a claim, the position is that which the watch knew of. */
  readonly story = new Story({ position, queued: () => true, ttl: false });
  /** Who was made a holder while it waited, in order. */
  readonly told: string[] = [];
  readonly #clients: readonly [Store, Store];
  readonly #names: readonly string[];
  readonly #kinds: Kinds;

  constructor(clients: readonly [Store, Store], names: readonly string[], kinds: Kinds) {
    this.#clients = clients;
    this.#names = names;
    this.#kinds = kinds;
  }

  async take(step: Step): Promise<void> {
    switch (step.do) {
      case "claim": {
        this.story.said.push(await this.#claim(step));
        break;
      }
      case "release": {
        const release = { name: this.#names[step.name]!, grantId: this.#id(step) };
        this.story.said.push(
          await this.#client(step).release([{ ...release, unused: step.unused }]),
        );
        break;
      }
      case "renew": {
        for (const [i, client] of this.#clients.entries()) {
          const items = step.items.filter(({ id }) => id % 2 === i);
          const renewals = items.map((one) => ({
            name: this.#names[one.name]!,
            grantId: this.#id(one),
            seq: one.seq,
            // Under another session.
            ttlMs: one.other ? 2 * LONG_MS : LONG_MS,
          }));
          const answers = await client.renew(renewals);
          this.story.said.push(answers.map((one, j) => this.story.renewed(one, renewals[j]!.name)));
        }
        break;
      }
      case "revoke": {
        const name = this.#names[step.name]!;
        const holders = await this.#clients[0].revoke(name, { holder: "operator", why: "a test" });
        this.story.said.push(holders.map((one) => this.story.holder(one, name)));
        break;
      }
      case "resize":
        this.story.said.push(await this.#clients[1].resize(this.#names[step.name]!, step.limit));
    }
  }

  async look(): Promise<void> {
    for (const name of this.#names)
      this.story.said.push(this.story.info(await this.#clients[0].inspect(name)));
  }

  async giveUp(): Promise<void> {
    for (let id = 0; id < IDS; id++) {
      const releases = this.#names.flatMap((name, i) =>
        [true, false].map(
          (both): Release => ({ name, grantId: this.#id({ id, both, name: i }), unused: true }),
        ),
      );
      await this.#client({ id }).release(releases);
    }
  }

  #client({ id }: Pick<Of, "id">): Store {
    return this.#clients[id % 2]!;
  }

  async #claim(step: Step & { do: "claim" }): Promise<object> {
    const name = this.#names[step.name]!;
    const grantId = this.#id(step);
    const names = step.both ? this.#names : [name];
    const asked = claimOf(name, {
      ...this.#kinds[step.kind % this.#kinds.length]!,
      names,
      grantId,
      holder: `holder ${step.id}`,
      seq: step.seq,
      ttlMs: LONG_MS,
      atLeastMs: step.closes ? LONG_MS : 0,
      queue: step.queue && !step.both,
    });
    const push = (push: Push): void => {
      if (push.kind === "granted") this.told.push(grantId);
    };
    return this.story.claimed(await this.#client(step).claim(asked, push), names);
  }

  /** An id is of one name, or of several that are asked for at once. */
  #id({ id, name, both }: Of): string {
    return `${both ? this.#names.join() : this.#names[name]} grant ${id}`;
  }
}

const position = ({ ahead, freeInMs, holder }: Position): unknown => ({
  ahead,
  isFree: freeInMs === Number.POSITIVE_INFINITY,
  holder,
});

describeWith(["etcd"], "etcd", () => {
  let lab: Lab;
  let clients: [EtcdStore, EtcdStore];
  beforeAll(async () => {
    lab = await Lab.open();
    const [server] = (await lab.etcd({ timing: "fast" })).servers;
    const endpoints = [`${server!.address}:${server!.port}`];
    const open = async (): Promise<EtcdStore> =>
      etcdStore(await openEtcdClient({ endpoints }), { closeClient: true });
    clients = [await open(), await open()];
  });
  afterAll(async () => {
    for (const one of clients ?? []) await one.close();
    await lab.close();
  });

  let rounds = 0;
  const run = fc.record({
    kinds: fc.constantFrom(...KINDS),
    steps: fc.array(step, { minLength: 1, maxLength: 25, size: "max" }),
  });

  // Several at once: each mostly waits for the disk, and their transactions go as one.
  test.concurrent.for([1, 2, 3, 4, 5])("answers as the rule says (%i)", TIMES, async (part) => {
    await fc.assert(
      fc.asyncProperty(run, async ({ kinds, steps }) => {
        rounds++;
        const names = [`${rounds} a`, `${rounds} b`];
        let nowMs = 1_000_000;
        const clock = { nowMs: () => nowMs, wallMs: () => 1_700_000_000_000 + nowMs };
        const memory = new MemoryStore(clock);
        const rule = new Side([memory, memory], names, kinds);
        const etcd = new Side(clients, names, kinds);
        for (const one of steps) {
          nowMs += 0.001;
          await Promise.all([rule.take(one), etcd.take(one)]);
          await Promise.all([rule.look(), etcd.look()]);
          expect(etcd.story.told).toEqual(rule.story.told);
          // A watch tells it, a moment later.
          await until("all are told", () => etcd.told.length >= rule.told.length, TOLD_MS);
          expect(etcd.told.toSorted()).toEqual(rule.told.toSorted());
        }
        await etcd.giveUp();
      }),
      // To shrink a failure takes longer than a test may: its seed repeats it.
      { ...runs(20, part), endOnFailure: true },
    );
  });
});
