import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  FrameReader,
  JuteReader,
  JuteWriter,
  MalformedReply,
} from "../../../src/stores/zookeeper/client/jute.js";
import { readAcl, readStat, writeAcl } from "../../../src/stores/zookeeper/client/records.js";
import { runs } from "../../support/chance.js";

const int32 = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
const int64 = fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n });
const text = fc.string({ unit: "binary" }).map((some) => some.toWellFormed());

const bodyOf = (write: (writer: JuteWriter) => void): Buffer => {
  const writer = new JuteWriter();
  write(writer);
  return writer.frame().subarray(4);
};

describe("jute", () => {
  test("reads what it has written", () => {
    const record = fc.tuple(int32, int64, fc.boolean(), text, fc.uint8Array(), fc.array(text));
    fc.assert(
      fc.property(record, ([a, b, c, d, e, f]) => {
        const body = bodyOf((writer) => {
          writer.int(a);
          writer.long(b);
          writer.bool(c);
          writer.text(d);
          writer.bytes(e);
          writer.texts(f);
        });
        const reader = new JuteReader(body);
        expect([reader.int(), reader.long(), reader.bool(), reader.text()]).toEqual([a, b, c, d]);
        expect([...reader.bytes()]).toEqual([...e]);
        expect(reader.texts()).toEqual(f);
        expect(reader.remaining).toBe(0);
      }),
      runs(),
    );
  });

  test("writes the bytes that ZooKeeper prescribes", () => {
    const writer = new JuteWriter();
    writer.int(-2);
    writer.long(258n);
    writer.bool(true);
    writer.text("ä");
    expect(writer.frame().toString("hex")).toBe("00000013fffffffe00000000000001020100000002c3a4");
    const acl = bodyOf((to) =>
      writeAcl(to, [{ permissions: ["read", "admin"], scheme: "ip", id: "::1" }]),
    );
    expect(acl.toString("hex")).toBe("00000001000000110000000269700000000" + "33a3a31");
    expect(readAcl(new JuteReader(acl))).toEqual([
      { permissions: ["read", "admin"], scheme: "ip", id: "::1" },
    ]);
  });

  test("refuses garbage, and reads nothing past its end", () => {
    const readers: ((reader: JuteReader) => unknown)[] = [
      (reader) => reader.text(),
      (reader) => reader.texts(),
      (reader) => reader.bytes(),
      readStat,
      readAcl,
    ];
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 100 }), fc.constantFrom(...readers), (bytes, read) => {
        try {
          read(new JuteReader(Buffer.from(bytes)));
        } catch (error) {
          expect(error).toBeInstanceOf(MalformedReply);
        }
      }),
      runs(500),
    );
  });

  test("refuses lengths and counts that the reply can't hold, and texts that are not UTF-8", () => {
    const huge = Buffer.from("7fffffff", "hex");
    expect(() => new JuteReader(huge).text()).toThrow("half a reply");
    expect(() => new JuteReader(huge).texts()).toThrow("too short");
    expect(() => new JuteReader(Buffer.from("00000001ff", "hex")).text()).toThrow("not UTF-8");
    // Java writes null so.
    const absent = Buffer.from("ffffffff", "hex");
    expect(new JuteReader(absent).bytes()).toHaveLength(0);
    expect(new JuteReader(absent).texts()).toEqual([]);
  });
});

describe("frames", () => {
  test("are the same however the network cuts them", () => {
    const frames = fc.array(fc.uint8Array({ maxLength: 50 }), { maxLength: 10 });
    fc.assert(
      fc.property(
        frames,
        fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 1 }),
        (all, cuts) => {
          const bytes = Buffer.concat(
            all.map((one) => {
              const writer = new JuteWriter();
              writer.bytes(one);
              return writer.frame().subarray(4);
            }),
          );
          const reader = new FrameReader(50);
          const found: number[][] = [];
          for (let at = 0, i = 0; at < bytes.length; i++) {
            const cut = cuts[i % cuts.length]!;
            reader.push(bytes.subarray(at, at + cut));
            at += cut;
            for (let next = reader.next(); next !== null; next = reader.next())
              found.push([...next]);
          }
          expect(found).toEqual(all.map((one) => [...one]));
        },
      ),
      runs(),
    );
  });

  test("of a negative or too great length are refused before they are there", () => {
    for (const length of ["ffffffff", "00000033", "48545450"]) {
      const reader = new FrameReader(50);
      reader.push(Buffer.from(length, "hex"));
      expect(() => reader.next()).toThrow(MalformedReply);
    }
  });
});
