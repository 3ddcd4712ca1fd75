import fc from "fast-check";
import { describe, expect, onTestFinished, test } from "vitest";
import { readSequencer, writeSequencer } from "../../src/core/sequencer.js";
import { checkSequencer } from "../../src/fence/index.js";
import { createLocks, type Locks } from "../../src/index.js";
import { memoryStore } from "../../src/stores/memory/index.js";

const KEY = "sixteen bytes or more";
const CONTENT = {
  name: "order:1",
  mode: "exclusive",
  token: 7n,
  floor: 7n,
  holder: "host",
  madeAtMs: 1,
} as const;
const INVALID = { code: "INVALID_ARGUMENT" };

function open(): Locks {
  const locks = createLocks(memoryStore());
  onTestFinished(() => locks.close());
  return locks;
}

describe("a sequencer", () => {
  test("says what the lease says, with and without a key", async () => {
    const lease = await open().acquire("order:1", { mode: "shared", note: 'n"ö' });
    const { name, token, floor, holder, mode } = lease;
    for (const options of [{}, { key: KEY }, { key: Buffer.from(KEY) }]) {
      const text = lease.sequencer(options);
      expect(text).toMatch(/^hf1(\.[\w-]+){1,2}$/);
      expect(readSequencer(text, options)).toMatchObject({ name, token, floor, holder, mode });
      expect(Math.abs(readSequencer(text, options).madeAtMs - Date.now())).toBeLessThan(60_000);
    }
  });

  test("is current until the lease ends, and not for the next holder", async () => {
    const locks = open();
    const lease = await locks.acquire("order:1");
    const text = lease.sequencer();
    expect(await checkSequencer(locks, text)).toMatchObject({ token: lease.token });
    await lease.release();
    expect(await checkSequencer(locks, text)).toBeNull();
    const next = await locks.acquire("order:1");
    expect(await checkSequencer(locks, text)).toBeNull();
    expect(await checkSequencer(locks, next.sequencer())).not.toBeNull();
  });

  test("is current only for the namespace and the offset that it was granted in, of any mode", async () => {
    const store = memoryStore();
    const openWith = (options: object): Locks => {
      const locks = createLocks(store, options);
      onTestFinished(() => locks.close());
      return locks;
    };
    const [a, b] = [openWith({ namespace: "a" }), openWith({ namespace: "b" })];
    const moved = openWith({ namespace: "a", tokenOffset: 10n });
    await b.acquire("order:1");
    const readers = [
      await a.acquire("order:1", { mode: "shared" }),
      await moved.acquire("order:1", { mode: "shared" }),
    ];
    const [text, offset] = readers.map((one) => one.sequencer());
    expect(await checkSequencer(a, text!)).toMatchObject({ mode: "shared" });
    expect(await checkSequencer(moved, offset!)).toMatchObject({ mode: "shared" });
    for (const [locks, other] of [
      [a, offset],
      [moved, text],
      [b, text],
    ] as const)
      expect(await checkSequencer(locks, other!)).toBeNull();
    const permit = await a.semaphore("gpu", { permits: 2 }).acquire();
    await a.semaphore("gpu", { permits: 2 }).acquire();
    expect(await checkSequencer(a, permit.sequencer())).toMatchObject({ mode: "permits" });
    const { token } = permit;
    const forged = { ...CONTENT, name: "gpu", token, floor: token };
    expect(await checkSequencer(a, writeSequencer(forged))).toBeNull();
  });

  test("is not given by a lease that is over", async () => {
    const lease = await open().acquire("order:1");
    await lease.release();
    expect(() => lease.sequencer()).toThrow(expect.objectContaining({ code: "LEASE_LOST" }));
  });

  test("is refused unsigned where a key is expected, and signed where none is given", () => {
    const [signed, unsigned] = [writeSequencer(CONTENT, { key: KEY }), writeSequencer(CONTENT)];
    expect(() => readSequencer(unsigned, { key: KEY })).toThrow(/not signed/);
    expect(() => readSequencer(signed)).toThrow(/pass the key/);
    expect(() => readSequencer(signed, { key: `${KEY}!` })).toThrow(/signature is wrong/);
  });

  test("is refused if the key is undefined: a secret that was not set must not let unsigned texts pass", () => {
    const unsigned = writeSequencer(CONTENT);
    const options = { key: process.env["HOLDFAST_NO_SUCH_VARIABLE"] } as object;
    expect(() => readSequencer(unsigned, options)).toThrow(/key/);
    expect(() => writeSequencer(CONTENT, options)).toThrow(/key/);
  });

  test("is refused when any character of it is changed, cut off or added", () => {
    const text = writeSequencer(CONTENT, { key: KEY });
    for (let i = 0; i < text.length; i++) {
      const other = text[i] === "A" ? "B" : "A";
      const changed = [
        text.slice(0, i) + other + text.slice(i + 1),
        text.slice(0, i),
        text.slice(0, i) + other + text.slice(i),
      ];
      for (const one of changed)
        expect(() => readSequencer(one, { key: KEY }), one).toThrow(
          expect.objectContaining(INVALID),
        );
    }
  });

  test("is refused in any other way to write its bytes", () => {
    const text = writeSequencer(CONTENT);
    for (const other of [`${text}=`, `${text} `, `${text}\n`, text.replace(".", ".\n")])
      expect(() => readSequencer(other)).toThrow(expect.objectContaining(INVALID));
  });

  test("of any text is read, or refused with an error of ours", () => {
    const parts = fc.oneof(fc.string(), fc.json(), fc.constantFrom("hf1", "", ".", "hf2"));
    const text = fc
      .tuple(fc.constantFrom("hf1", "hf2", ""), parts, fc.boolean())
      .map(([format, part, encoded]) =>
        [format, encoded ? Buffer.from(part).toString("base64url") : part].join("."),
      );
    fc.assert(
      fc.property(fc.oneof(text, fc.string({ maxLength: 3_000 })), (one) => {
        try {
          readSequencer(one);
        } catch (error) {
          expect(error).toMatchObject(INVALID);
        }
      }),
      { seed: 1, numRuns: 500 },
    );
  });

  test.each([
    ["a token that is a number", ["n", "exclusive", 7, "7", "h", 1]],
    ["a negative token", ["n", "exclusive", "-7", "7", "h", 1]],
    ["a floor above the token", ["n", "exclusive", "7", "8", "h", 1]],
    ["a token of 2^63", ["n", "exclusive", String(2n ** 63n), "7", "h", 1]],
    ["another mode", ["n", "both", "7", "7", "h", 1]],
    ["no name", ["", "exclusive", "7", "7", "h", 1]],
    ["a control character in the holder", ["n", "exclusive", "7", "7", "\u001b[2J", 1]],
    ["a time that is a text", ["n", "exclusive", "7", "7", "h", "1"]],
    ["one field more", ["n", "exclusive", "7", "7", "h", 1, 2]],
    ["an object", { name: "n" }],
  ])("with %s is refused", (_what, content) => {
    const text = `hf1.${Buffer.from(JSON.stringify(content)).toString("base64url")}`;
    expect(() => readSequencer(text)).toThrow(expect.objectContaining(INVALID));
  });

  test("is refused when it is too long, or no text", () => {
    expect(() => readSequencer(`hf1.${"A".repeat(3_000)}`)).toThrow(/longer than/);
    for (const bad of [undefined, null, 1, Buffer.from("hf1.")])
      expect(() => readSequencer(bad as never)).toThrow(expect.objectContaining(INVALID));
  });

  test("takes the longest name and holder", () => {
    const content = { ...CONTENT, name: '"'.repeat(255), holder: "\\".repeat(255) };
    const text = writeSequencer(content, { key: KEY });
    expect(readSequencer(text, { key: KEY })).toEqual(content);
  });

  test.each([["short"], [5], [null], [new Uint8Array(8)]])(
    "key %j is refused, and not shown",
    (key) => {
      let message = "";
      try {
        writeSequencer(CONTENT, { key: key as never });
      } catch (error) {
        message = (error as Error).message;
      }
      expect(message).toContain("at least 16 bytes");
      expect(message).not.toContain("short");
    },
  );
});
