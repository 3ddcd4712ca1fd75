import { subscribe, unsubscribe } from "node:diagnostics_channel";
import fc from "fast-check";
import { expect, onTestFinished, test } from "vitest";
import { StaleTokenError } from "../../src/core/errors.js";
import type { Fence, Fenced } from "../../src/fence/fence.js";
import type { FencedCell } from "../../src/testing.js";
import { rejection } from "../core/helpers.js";
import { runs } from "../support/chance.js";
import { expectListed, type LosableSubject } from "./suite.js";

/** A fence whose transactions are built first, and sent by `commit`. */
interface CommittedFence<Tx> extends Fence<Tx | undefined> {
  commit(tx: Tx): Promise<unknown>;
}

/** The parts of such a fence that the tests need, and of the data beside it: keys with a text. */
export interface Backend<Client, Tx> {
  fence(client: Client, place?: string): CommittedFence<Tx>;
  /** The client of the tests. */
  client(): Client;
  /** Another client, closed after the test. */
  connect(): Promise<Client>;
  /** A client whose requests and replies arrive in the order of the scheduler. */
  interleave(scheduler: fc.Scheduler): Client;
  /** Makes a key with the text "0". */
  create(key: string): Promise<void>;
  read(client: Client, key: string): Promise<string | null>;
  /** Deletes a key, if it is there. */
  remove(key: string): Promise<void>;
  newTx(): Tx;
  /** Makes the write of a key part of the transaction. */
  put(tx: Tx, key: string, text: string): void;
  /** Takes everything out of the transaction. */
  clear(tx: Tx): void;
  /** Sends the transaction by other means than the fence; whether it was executed. */
  send(tx: Tx): Promise<boolean>;
  /** The order of an accepted commit among all. */
  orderOf(reply: unknown): bigint;
  /** The key of a resource's number. */
  keyOf(resource: string, place?: string): string;
  /** Values of a later format, and values that no fence wrote. */
  readonly strange: { readonly later: readonly string[]; readonly foreign: readonly string[] };
  /** Whether the server tells when a number was changed. */
  readonly tellsTime: boolean;
  /** Resources that the fence must keep apart, besides the usual ones. */
  readonly names: readonly string[];
}

export const exclusive = (token: bigint): Fenced => ({ token, floor: token });

let places = 0;
const newPlace = (): string => `place-${process.pid}-${++places}`;

/** A client whose calls are scheduled, on their way there and back. `direct`: calls that are not. */
export function interleaved<Client extends object>(
  client: Client,
  scheduler: fc.Scheduler,
  direct: readonly string[] = [],
): Client {
  return new Proxy(client, {
    get(target, key) {
      const value = Reflect.get(target, key);
      if (typeof value !== "function") return value;
      if (direct.includes(String(key))) return value.bind(target);
      return async (...args: unknown[]) => {
        await scheduler.schedule(Promise.resolve());
        // A rejection that the scheduler holds back would count as unhandled.
        const [outcome] = await scheduler.schedule(
          Promise.allSettled([value.apply(target, args) as Promise<unknown>]),
        );
        if (outcome.status === "rejected") throw outcome.reason;
        return outcome.value;
      };
    },
  });
}

/** A fence of its own with numbers beside it, for the shared suite of fences. */
export function subjectOf<Client, Tx>(backend: Backend<Client, Tx>): LosableSubject {
  const place = newPlace();
  const fence = backend.fence(backend.client(), place);
  /** Keys, and when each was made: writers that begin together make it once. */
  const created = new Map<string, Promise<void>>();
  const keyOf = async (resource: string): Promise<string> => {
    const key = `${place}-${Buffer.from(resource).toString("hex")}`;
    if (!created.has(key)) created.set(key, backend.create(key));
    await created.get(key);
    return key;
  };
  return {
    fence: fence as Fence<undefined>,
    read: async (resource) => Number(await backend.read(backend.client(), await keyOf(resource))),
    async write(resource, lease, value, options) {
      const tx = backend.newTx();
      backend.put(tx, await keyOf(resource), String(value));
      await fence.guard(tx, resource, lease, options);
      await fence.commit(tx);
    },
    async forget(resource) {
      const key = await keyOf(resource);
      await backend.remove(key);
      created.delete(key);
    },
    loseNumber: () => backend.remove(backend.keyOf("cell", place)),
  };
}

/** The same for the suite of stores. */
export async function cellOf<Client, Tx>(backend: Backend<Client, Tx>): Promise<FencedCell> {
  const place = newPlace();
  const fence = backend.fence(backend.client(), place);
  await backend.create(place);
  return {
    fence: fence as FencedCell["fence"],
    transaction: async (fn) => {
      const tx = backend.newTx();
      const before = JSON.stringify(tx);
      const result = await fn(tx);
      if (JSON.stringify(tx) !== before) await fence.commit(tx);
      return result;
    },
    read: async () => Number(await backend.read(backend.client(), place)),
    write: async (tx, value) => backend.put(tx as Tx, place, String(value)),
  };
}

/** The tests of a fence whose transactions are sent by `commit`. */
export function committedTests<Client, Tx>(backend: Backend<Client, Tx>): void {
  const { newTx, put } = backend;

  const fresh = async (): Promise<{
    fence: CommittedFence<Tx>;
    resource: string;
    key: string;
    read: () => Promise<string | null>;
  }> => {
    const resource = newPlace();
    const key = `data-${resource}`;
    await backend.create(key);
    const fence = backend.fence(backend.client());
    return { fence, resource, key, read: () => backend.read(backend.client(), key) };
  };

  test("refuses a stale holder's transaction that was built before the next holder entered", async () => {
    type Add = (fence: CommittedFence<Tx>, tx: Tx, resource: string) => Promise<void>;
    const lease = exclusive(5n);
    const ways: Add[] = [
      (fence, tx, resource) => fence.enter(tx, resource, lease),
      (fence, tx, resource) => fence.guard(tx, resource, lease),
      (fence, tx, resource) => fence.guard(tx, resource, lease, { strict: true }),
    ];
    for (const add of ways) {
      const { fence, resource, key, read } = await fresh();
      await fence.enter(undefined, resource, lease);
      const tx = newTx();
      await add(fence, tx, resource);
      put(tx, key, "stale");
      await backend.fence(backend.client()).enter(undefined, resource, exclusive(10n));
      const events: unknown[] = [];
      const onEvent = (event: unknown): unknown => events.push(event);
      subscribe("holdfast:stale-token", onEvent);
      const error = await rejection(fence.commit(tx));
      unsubscribe("holdfast:stale-token", onEvent);
      expect(error).toBeInstanceOf(StaleTokenError);
      expect(error).toMatchObject({ resource, token: 5n, highest: 10n });
      expect(events).toMatchObject([{ resource, token: 5n, highest: 10n }]);
      expect(await backend.send(tx), "sent by other means, it carries its check").toBe(false);
      backend.clear(tx);
      put(tx, key, "stale");
      expect(await rejection(fence.commit(tx)), "without its check").toBeInstanceOf(
        StaleTokenError,
      );
      expect(await read()).toBe("0");
    }
  });

  test("refuses a transaction that a fence of another client has guarded", async () => {
    const { fence, resource, key, read } = await fresh();
    const other = backend.fence(await backend.connect());
    const tx = newTx();
    put(tx, key, "1");
    await fence.guard(tx, resource, exclusive(5n));
    for (const step of [
      other.commit(tx),
      other.enter(tx, resource, exclusive(6n)),
      other.guard(tx, resource, exclusive(6n)),
      other.reset(tx, resource, 1n),
    ])
      expect(await rejection(step)).toMatchObject({ code: "INVALID_ARGUMENT" });
    expect(await fence.highest(undefined, resource)).toBe(5n);
    expect(await read()).toBe("0");
    await fence.commit(tx);
    expect(await read()).toBe("1");
  });

  test("guards several resources in one transaction, and one refusal is enough", async () => {
    const [one, two] = [await fresh(), await fresh()];
    const tx = newTx();
    put(tx, one.key, "1");
    await one.fence.guard(tx, one.resource, exclusive(5n));
    await two.fence.guard(tx, two.resource, exclusive(7n));
    await two.fence.enter(undefined, two.resource, exclusive(8n));
    expect(await rejection(one.fence.commit(tx))).toMatchObject({
      resource: two.resource,
      highest: 8n,
    });
    expect(await one.read()).toBe("0");
  });

  test.concurrent("keeps the highest floor when many enter at the same time", {
    timeout: 60_000,
  }, async () => {
    const lease = fc
      .tuple(fc.bigInt(0n, 30n), fc.bigInt(0n, 30n))
      .map(([a, b]) => ({ token: a > b ? a : b, floor: a > b ? b : a }));
    await fc.assert(
      fc.asyncProperty(
        fc.array(lease, { minLength: 2, maxLength: 8 }),
        fc.scheduler(),
        async (leases, scheduler) => {
          const resource = newPlace();
          const fence = backend.fence(backend.interleave(scheduler));
          const all = Promise.allSettled(
            leases.map((one) => fence.enter(undefined, resource, one)),
          );
          const outcomes = await scheduler.waitFor(all);
          const highest = leases.reduce((most, { floor }) => (floor > most ? floor : most), 0n);
          const found = await backend.fence(backend.client()).highest(undefined, resource);
          expect(found).toBe(highest);
          outcomes.forEach((outcome, i) => {
            if (outcome.status === "fulfilled") return;
            expect(outcome.reason).toBeInstanceOf(StaleTokenError);
            expect(leases[i]!.token).toBeLessThan(highest);
          });
        },
      ),
      runs(60),
    );
  });

  /** Enters, reads a number and writes it raised by one. Resolves with the order of the write. */
  async function increment(
    client: Client,
    { resource, key }: { resource: string; key: string },
    token: bigint,
    strict: boolean,
  ): Promise<bigint> {
    const fence = backend.fence(client);
    await fence.enter(undefined, resource, exclusive(token));
    const before = Number(await backend.read(client, key));
    const tx = newTx();
    await fence.guard(tx, resource, exclusive(token), { strict });
    put(tx, key, String(before + 1));
    return backend.orderOf(await fence.commit(tx));
  }

  /** The writes that were accepted are all in the number, and their tokens rose. Resolves to how many there are. */
  async function expectNoneLost(
    read: () => Promise<string | null>,
    tokens: readonly bigint[],
    outcomes: readonly PromiseSettledResult<bigint>[],
  ): Promise<number> {
    const wrote = outcomes
      .flatMap((outcome, i) =>
        outcome.status === "fulfilled" ? [{ token: tokens[i]!, order: outcome.value }] : [],
      )
      .sort((a, b) => Number(a.order - b.order))
      .map(({ token }) => token);
    expect(Number(await read())).toBe(wrote.length);
    expect(wrote).toEqual([...wrote].sort((a, b) => Number(a - b)));
    for (const outcome of outcomes) {
      if (outcome.status === "rejected") expect(outcome.reason).toBeInstanceOf(StaleTokenError);
    }
    return wrote.length;
  }

  test.concurrent("loses no update of holders that overlap in every way", {
    timeout: 60_000,
  }, async () => {
    let refused = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.uniqueArray(fc.bigInt(1n, 99n), { minLength: 2, maxLength: 5 }),
        fc.boolean(),
        fc.scheduler(),
        async (tokens, strict, scheduler) => {
          const place = await fresh();
          const client = backend.interleave(scheduler);
          const all = Promise.allSettled(
            tokens.map((token) => increment(client, place, token, strict)),
          );
          const outcomes = await scheduler.waitFor(all);
          refused += tokens.length - (await expectNoneLost(place.read, tokens, outcomes));
        },
      ),
      runs(60),
    );
    expect(refused).toBeGreaterThan(0);
  });

  test("64 writers with tokens out of order, on clients of their own, lose no update", async () => {
    const place = await fresh();
    const clients = await Promise.all(Array.from({ length: 8 }, () => backend.connect()));
    // 37 and 64 have no common divisor, so these are 64 tokens in another order.
    const tokens = Array.from({ length: 64 }, (_, i) => BigInt(1 + ((i * 37) % 64)));
    const outcomes = await Promise.allSettled(
      tokens.map((token, i) => increment(clients[i % clients.length]!, place, token, false)),
    );
    const wrote = await expectNoneLost(place.read, tokens, outcomes);
    expect(wrote).toBeGreaterThan(0);
    expect(wrote).toBeLessThan(64);
    expect(await place.fence.highest(undefined, place.resource)).toBe(64n);
  });

  test("keeps resources apart, whatever is in their names", async () => {
    const some = ["a/", "a/b", "/", "..", "🎩 hat", " ", "%2F", "x".repeat(255), ...backend.names];
    const fence = backend.fence(backend.client(), newPlace());
    for (const [i, resource] of some.entries()) {
      await fence.enter(undefined, resource, exclusive(BigInt(i) + 1n));
    }
    for (const [i, resource] of some.entries()) {
      expect(await fence.highest(undefined, resource), resource).toBe(BigInt(i) + 1n);
    }
    for (const bad of ["", "x".repeat(256), "a\u0000", "\ud800", 7, undefined]) {
      for (const step of [
        fence.enter(undefined, bad as string, exclusive(1n)),
        fence.guard(newTx(), bad as string, exclusive(1n), { strict: true }),
        fence.highest(undefined, bad as string),
        fence.reset(undefined, bad as string, 1n),
      ]) {
        expect(await rejection(step)).toMatchObject({ code: "INVALID_ARGUMENT" });
      }
    }
  });

  test("refuses a value of another format, or of somebody else, and leaves it alone", async () => {
    const { later, foreign } = backend.strange;
    const { fence, resource, key, read } = await fresh();
    const lease = exclusive(3n);
    await fence.enter(undefined, resource, lease);
    const tx = newTx();
    put(tx, key, "stale");
    await fence.guard(tx, resource, lease);
    for (const value of [...later, ...foreign]) {
      const foreignTx = newTx();
      put(foreignTx, backend.keyOf(resource), value);
      expect(await backend.send(foreignTx)).toBe(true);
      for (const step of [
        () => fence.commit(tx),
        () => fence.enter(undefined, resource, lease),
        () => fence.guard(newTx(), resource, lease),
        () => fence.highest(undefined, resource),
        () => fence.reset(undefined, resource, 1n),
        () => fence.reset(newTx(), resource, 1n),
      ]) {
        const error = await rejection(step());
        expect(error, value).toMatchObject({ code: "UNSUPPORTED" });
        expect(error.message).toContain(later.includes(value) ? "has format" : "is no fence");
      }
      expect(await backend.read(backend.client(), backend.keyOf(resource))).toBe(value);
    }
    expect(await read()).toBe("0");
  });

  test("lists its resources, with the time where the server tells it", async () => {
    const fence = backend.fence(backend.client(), newPlace());
    await expectListed(fence as never, { tellsTime: backend.tellsTime });
  });

  test("refuses what is no transaction, and one that is not guarded", async () => {
    const { fence, resource } = await fresh();
    const refused = async (step: Promise<unknown>, words: RegExp): Promise<void> => {
      const error = await rejection(step);
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(error.message).toMatch(words);
    };
    for (const bad of [null, {}, { compare: [] }, { compare: {}, success: [] }, "tx"]) {
      await refused(fence.guard(bad as Tx, resource, exclusive(1n)), /the transaction is/);
      await refused(fence.reset(bad as Tx, resource, 1n), /the transaction is/);
    }
    await refused(fence.commit(undefined as Tx), /the transaction is/);
    await refused(fence.commit(newTx()), /is not guarded/);
    const tx = newTx();
    await fence.guard(tx, resource, exclusive(1n));
    // A copy is not recognised, but carries the check.
    const copy = (Array.isArray(tx) ? [...tx] : { ...tx }) as Tx;
    await refused(fence.commit(copy), /is not guarded/);
  });
}

/** Closes a client after the test. */
export function closedAfterTest<C extends { close(): unknown }>(client: C): C {
  onTestFinished(() => void client.close());
  return client;
}
