import { expect, test } from "vitest";
import { placeFence } from "../../src/fence/compare-and-set.js";

const by = (token: bigint, floor = token) => ({ token, floor });

function places() {
  const objects = new Map<string, { value: number | null; highest: bigint | null; tag: number }>();
  const place = {
    async read(resource: string) {
      const found = objects.get(resource) ?? { value: null, highest: null, tag: 0 };
      return { value: found.value, highest: found.highest, version: found.tag };
    },
    async write(
      resource: string,
      next: { value: number | null; highest: bigint | null },
      version: number,
    ) {
      if ((objects.get(resource)?.tag ?? 0) !== version) return false;
      objects.set(resource, { ...next, tag: version + 1 });
      return true;
    },
  };
  return { objects, place };
}

test.each([[Number.NaN], [7], ["7"], [-1n], [undefined]])(
  "a place that reads the number %o is refused: a comparison with it would let everybody pass",
  async (highest) => {
    const { place } = places();
    const read = async (resource: string) => ({ ...(await place.read(resource)), highest });
    const fence = placeFence({ ...place, read: read as never });
    for (const call of [
      fence.enter(undefined, "a", by(1n)),
      fence.guard(undefined, "a", by(1n)),
      fence.update("a", by(1n), () => 1),
      fence.highest(undefined, "a"),
    ])
      await expect(call).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
  },
);

test("a write that fails after it was done is not repeated", async () => {
  const { place, objects } = places();
  const fence = placeFence({
    ...place,
    async write(resource: string, next: never, version: number) {
      const done = await place.write(resource, next, version);
      if (objects.get(resource)!.value !== null) throw new Error("the reply was lost");
      return done;
    },
  });
  await expect(fence.update("a", by(1n), (count) => (count ?? 0) + 1)).rejects.toThrow("lost");
  expect(objects.get("a")).toMatchObject({ value: 1, highest: 1n });
});

test("a holder that is overtaken while its function runs is refused, and writes nothing", async () => {
  const { place, objects } = places();
  const fence = placeFence(place);
  const calls: (number | null)[] = [];
  const late = fence.update("a", by(1n), async (count) => {
    calls.push(count);
    if (calls.length === 1) await fence.update("a", by(2n), (now) => (now ?? 0) + 10);
    return (count ?? 0) + 1;
  });
  await expect(late).rejects.toMatchObject({ code: "STALE_TOKEN", highest: 2n });
  expect([calls, objects.get("a")!.value]).toEqual([[null], 10]);
});

test("shared holders change the place in turn, and neither loses an update nor lowers the floor", async () => {
  const { place, objects } = places();
  const fence = placeFence(place, { retries: 1_000 });
  const holders = [by(5n), by(6n, 5n), by(7n, 5n)];
  const add = (holder: { token: bigint; floor: bigint }): Promise<unknown> =>
    fence.update("a", holder, async (count) => {
      await new Promise(setImmediate);
      return (count ?? 0) + 1;
    });
  await Promise.all(holders.flatMap((one) => [add(one), add(one), add(one)]));
  expect(objects.get("a")).toMatchObject({ value: 9, highest: 5n });
  await fence.update("a", by(6n, 4n), (count) => count! + 1);
  expect(objects.get("a")).toMatchObject({ value: 10, highest: 5n });
});

test("a place that others change all the time is given up after the retries, with nothing written", async () => {
  const { place, objects } = places();
  let attempts = 0;
  const write = async (): Promise<boolean> => {
    attempts++;
    return false;
  };
  const fence = placeFence({ ...place, write }, { retries: 2 });
  await expect(fence.enter(undefined, "a", by(1n))).rejects.toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: true,
  });
  expect([attempts, objects.size]).toEqual([3, 0]);
});

test("a place whose write resolves to nothing is refused: its change would be made again and again", async () => {
  const { place, objects } = places();
  const fence = placeFence<number, number>({
    ...place,
    write: (async (...args: Parameters<typeof place.write>) => {
      await place.write(...args);
    }) as never,
  });
  const INVALID = { code: "INVALID_ARGUMENT" };
  await expect(fence.enter(undefined, "a", by(1n))).rejects.toMatchObject(INVALID);
  const adding = fence.update("a", by(1n), (count) => (count ?? 0) + 1);
  await expect(adding).rejects.toMatchObject(INVALID);
  await expect(fence.reset(undefined, "a", 1n)).rejects.toMatchObject(INVALID);
  expect(objects.get("a")).toMatchObject({ value: 1 });
});

test.each([
  ["in the content, no update is lost", false],
  ["in metadata, a stale write is accepted, and an update is lost", true],
])(
  "with a hash of the content as the version, as on S3, and the number %s",
  async (_what, apart) => {
    let object: { content: string; metadata: string | null } = { content: "", metadata: null };
    const fence = placeFence<number, string>({
      async read() {
        const { content: version, metadata } = object;
        const { value = 0, highest = null } = version === "" ? {} : JSON.parse(version);
        const number = apart ? metadata : highest;
        return { value, highest: number === null ? null : BigInt(number), version };
      },
      async write(_resource, { value, highest }, version) {
        if (object.content !== version) return false;
        const metadata = String(highest);
        const content = JSON.stringify(apart ? { value } : { value, highest: metadata });
        object = { content, metadata: apart ? metadata : null };
        return true;
      },
    });
    await fence.update("a", by(1n), () => 0);
    let readByNext: number | null = null;
    // The old holder is paused between the read and the write of its update.
    const late = fence.update("a", by(1n), async (count) => {
      await fence.enter(undefined, "a", by(2n));
      readByNext = JSON.parse(object.content).value as number;
      return count! + 1;
    });
    const accepted = await late.then(
      () => 1,
      (error) => {
        expect(error).toMatchObject({ code: "STALE_TOKEN", highest: 2n });
        return 0;
      },
    );
    await fence.update("a", by(2n), () => readByNext! + 1);
    expect([accepted, JSON.parse(object.content).value]).toEqual([apart ? 1 : 0, 1]);
  },
);
