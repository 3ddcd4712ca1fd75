import { setTimeout as pause } from "node:timers/promises";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import {
  LOCK_LIMIT,
  type Position,
  type Push,
  type Release,
  type Store,
} from "../../src/core/store.js";
import { MemoryStore } from "../../src/stores/memory.js";
import type { RedisStore } from "../../src/stores/redis/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { runs } from "../support/chance.js";
import { describeWith } from "../support/needs.js";
import { byIoredis, claimOf, listening } from "../support/redis.js";
import { Story } from "../support/story.js";
import { until } from "../support/worker.js";

/**
 * The rule in Lua against the rule in TypeScript: the same random steps on both, and the same answers,
 * holders, queue and order of tokens. Time differs between the two, so there are only leases that
 * are over after the step that asked for them, and such as outlast the test.
 */
const LONG_MS = 3_600_000;
/** Outlasts the test too, and ends before a ticket of LONG_MS has to be renewed. */
const MIDDLE_MS = LONG_MS / 6;
const SHORT_MS = 1;
/** Longer than SHORT_MS on the server's clock, which counts in whole ms in places. */
const OVER_MS = 4;

const TTLS_MS = { short: SHORT_MS, middle: MIDDLE_MS, long: LONG_MS };
type Ttl = keyof typeof TTLS_MS;

type Act =
  | {
      do: "claim";
      name: number;
      both: boolean;
      id: number;
      seq: number;
      kind: number;
      ttl: Ttl;
      atLeast: "no" | "short" | "long";
      queue: boolean;
    }
  | { do: "release"; name: number; both: boolean; id: number; unused: boolean };

type Step =
  /** In one turn of the event loop. */
  | { do: "acts"; acts: Act[] }
  | {
      do: "renew";
      items: { name: number; both: boolean; id: number; seq: number; ttl: Ttl }[];
    }
  | { do: "revoke"; name: number }
  | { do: "resize"; name: number; limit: number };

/** As a lock, exclusive or shared, and as semaphores of two sizes. */
const KINDS = [
  { permits: LOCK_LIMIT, limit: LOCK_LIMIT },
  { permits: 1, limit: LOCK_LIMIT },
  { permits: 1, limit: 3 },
  { permits: 2, limit: 3 },
  { permits: 3, limit: 3 },
  { permits: 1, limit: 2 },
];

const name = fc.nat(1);
const MOST_IDS = 8;
const id = fc.nat(4);
const seq = fc.integer({ min: 1, max: 4 });
const rarely = fc.integer({ min: 0, max: 4 }).map((n) => n === 0);
const ttl = fc.constantFrom<Ttl[]>("short", "middle", "middle", "long", "long");
const claim = fc.record({
  do: fc.constant("claim" as const),
  name,
  both: rarely,
  id,
  seq,
  // Mostly of the first few, so that they meet.
  kind: fc.oneof({ weight: 3, arbitrary: fc.nat(1) }, { weight: 2, arbitrary: fc.nat(5) }),
  ttl,
  atLeast: fc.oneof(
    { weight: 6, arbitrary: fc.constant("no" as const) },
    fc.constantFrom("short" as const, "long" as const),
  ),
  queue: fc.boolean(),
});
const release = fc.record({
  do: fc.constant("release" as const),
  name,
  both: rarely,
  id,
  unused: fc.boolean(),
});
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant("acts" as const),
      acts: fc.array(fc.oneof({ weight: 3, arbitrary: claim }, { weight: 2, arbitrary: release }), {
        minLength: 1,
        maxLength: 3,
      }),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant("renew" as const),
      items: fc.array(fc.record({ name, both: rarely, id, seq, ttl }), {
        minLength: 1,
        maxLength: 4,
      }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("revoke" as const), name }) },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant("resize" as const),
      name,
      limit: fc.integer({ min: 1, max: 4 }),
    }),
  },
);

/**
 * One act at a time on a lock that many wait for: a waiter that two acts of one turn concern may be told to
 * look between the two, or not at all. Ids that were revoked would get nothing any more.
 */
const here = fc.record({
  name: fc.constant(0),
  both: fc.constant(false),
  id: fc.nat(MOST_IDS - 1),
  seq,
});
const outlasting = fc.constantFrom<Ttl[]>("middle", "long");
const contendedClaim = fc
  .tuple(here, outlasting, fc.nat(1))
  .map(([one, ttl, kind]): Act => ({ do: "claim", ...one, kind, ttl, atLeast: "no", queue: true }));
const contendedRelease = here.map(
  ({ seq: _, ...one }): Act => ({ do: "release", ...one, unused: true }),
);
const contendedAct = fc.oneof({ weight: 2, arbitrary: contendedClaim }, contendedRelease);
const contendedStep = fc.oneof(
  { weight: 4, arbitrary: contendedAct.map((act): Step => ({ do: "acts", acts: [act] })) },
  fc.tuple(here, outlasting).map(([one, ttl]): Step => ({ do: "renew", items: [{ ...one, ttl }] })),
);
const contended = fc.array(contendedStep, { minLength: 20, maxLength: 40, size: "max" });

/** One store at work, and what it said, without what depends on time. */
class Side {
  readonly story = new Story({ position, ttl: true });
  readonly #told: string[] = [];
  /** Who was told to look, in order. */
  readonly looks: string[] = [];
  readonly #answered = new Set<string>();
  readonly #store: Store;
  readonly #names: readonly string[];

  constructor(store: Store, names: readonly string[]) {
    this.#store = store;
    this.#names = names;
  }

  async take(step: Step): Promise<void> {
    switch (step.do) {
      case "acts": {
        const answers = await Promise.all(step.acts.map((act) => this.#act(act)));
        this.story.said.push(answers);
        // Who is answered that it holds, or gives up, may have been pushed a grant by then, or not.
        for (const [i, act] of step.acts.entries()) {
          if (act.do === "release" || "granted" in answers[i]!) this.#answered.add(this.#id(act));
        }
        break;
      }
      case "renew": {
        const renewals = step.items.map((one) => ({
          name: this.#names[one.name]!,
          grantId: this.#id(one),
          seq: one.seq,
          ttlMs: TTLS_MS[one.ttl],
        }));
        const answers = await this.#store.renew(renewals);
        for (const [i, { kind }] of answers.entries()) {
          if (kind === "granted" || kind === "lost") this.#answered.add(renewals[i]!.grantId);
        }
        this.story.said.push(answers.map((one, i) => this.story.renewed(one, renewals[i]!.name)));
        break;
      }
      case "revoke": {
        const name = this.#names[step.name]!;
        const holders = await this.#store.revoke(name, { holder: "operator", why: "a test" });
        this.story.said.push(holders.map((one) => this.story.holder(one, name)));
        break;
      }
      case "resize":
        this.story.said.push(await this.#store.resize(this.#names[step.name]!, step.limit));
    }
  }

  async look(): Promise<void> {
    for (const name of this.#names)
      this.story.said.push(this.story.info(await this.#store.inspect(name)));
  }

  /** Who was made a holder while it waited, in order. */
  get told(): readonly string[] {
    return this.#told.filter((grantId) => !this.#answered.has(grantId));
  }

  async giveUp(): Promise<void> {
    const ids = Array.from({ length: MOST_IDS }, (_, id) =>
      [true, false].map((both) => ({ id, both })),
    ).flat();
    const releases = this.#names.flatMap((name, i) =>
      ids.map((one): Release => ({ name, grantId: this.#id({ ...one, name: i }), unused: true })),
    );
    await this.#store.release(releases);
  }

  async #act(act: Act): Promise<object> {
    const name = this.#names[act.name]!;
    const grantId = this.#id(act);
    if (act.do === "release") {
      const answers = await this.#store.release([{ name, grantId, unused: act.unused }]);
      return { released: answers[0] };
    }
    const names = act.both ? this.#names : [name];
    const asked = claimOf(name, {
      ...KINDS[act.kind]!,
      names,
      grantId,
      holder: `holder ${act.id}`,
      seq: act.seq,
      ttlMs: TTLS_MS[act.ttl],
      atLeastMs: { no: 0, short: SHORT_MS, long: LONG_MS }[act.atLeast],
      queue: act.queue && !act.both,
    });
    const push = (push: Push): void => {
      if (push.kind === "granted") this.#told.push(grantId);
      else this.looks.push(grantId);
    };
    return this.story.claimed(await this.#store.claim(asked, push), names);
  }

  /** An id is of one name, or of several that are asked for at once. */
  #id({ id, name, both }: { id: number; name: number; both: boolean }): string {
    return `${both ? this.#names.join() : this.#names[name]} grant ${id}`;
  }
}

/** How many are before one is exact for the first; the store may count who has gone since for the others. */
const position = ({ ahead, freeInMs, holder }: Position): unknown => ({
  isFirst: ahead === 0,
  isFree: freeInMs === Number.POSITIVE_INFINITY,
  holder,
});

const isOverSoon = (step: Step): boolean =>
  step.do === "renew"
    ? step.items.some(({ ttl }) => ttl === "short")
    : step.do === "acts" &&
      step.acts.some(
        (act) => act.do === "claim" && (act.ttl === "short" || act.atLeast === "short"),
      );

const closesSoon = (step: Step): boolean =>
  step.do === "acts" &&
  step.acts.some((act) => act.do === "claim" && act.queue && act.atLeast === "short");

describeWith(["redis"], "Redis", () => {
  let lab: Lab;
  let store: RedisStore;
  beforeAll(async () => {
    lab = await Lab.open();
    store = await byIoredis((await lab.redis()).url);
    await listening(store);
  });
  afterAll(async () => {
    await store?.close();
    await lab.close();
  });

  let rounds = 0;

  test.each([
    ["answers as the rule says", fc.array(step, { minLength: 1, maxLength: 25 }), 200],
    ["tells to look whom the rule tells", contended, 100],
  ])("%s", async (_, steps, many) => {
    const isContended = steps === contended;
    let looks = 0;
    await fc.assert(
      fc.asyncProperty(steps, async (steps) => {
        rounds++;
        const names = [`${rounds} a`, `${rounds} b`];
        let nowMs = 1_000_000;
        const clock = { nowMs: () => nowMs, wallMs: () => 1_700_000_000_000 + nowMs };
        const rule = new Side(new MemoryStore(clock), names);
        const redis = new Side(store, names);
        // Whoever comes in while it waits closes the name from then on: by a release, for instance.
        let closesLater = false;
        for (const one of steps) {
          nowMs += 0.001;
          await Promise.all([rule.take(one), redis.take(one)]);
          if (isContended) {
            const isTold = (): boolean =>
              redis.told.length >= rule.told.length && redis.looks.length >= rule.looks.length;
            await until("all are told", isTold, 2_000);
          }
          closesLater ||= closesSoon(one);
          if (isOverSoon(one) || closesLater) {
            nowMs += OVER_MS;
            await pause(OVER_MS);
          }
          await Promise.all([rule.look(), redis.look()]);
        }
        expect(redis.story.told).toEqual(rule.story.told);
        await until("all are told", () => redis.told.length >= rule.told.length, 2_000);
        expect(redis.told).toEqual(rule.told);
        if (isContended) expect(redis.looks).toEqual(rule.looks);
        looks += rule.looks.length;
        await redis.giveUp();
      }),
      runs(many),
    );
    if (isContended) expect(looks).toBeGreaterThan(many / 5);
  });
});
