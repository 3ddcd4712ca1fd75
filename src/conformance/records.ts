import assert from "node:assert/strict";
import {
  MOST_RECORD_BYTES,
  type Records,
  type RecordWrite,
  type WriteAnswer,
} from "../core/records.js";
import { FaultyStore } from "../testing/faulty-store.js";
import { meterCases, recordsOf } from "./meters.js";
import { type Case, grantOf, ignore } from "./subject.js";

/** Longer than any case takes, so that nothing expires in it. */
const LONG_MS = 3_600_000;
const HIGHEST_TOKEN = 2n ** 63n - 1n;
const CLIENTS = 5;

const WRITTEN: WriteAnswer = { kind: "written" };

let versions = 0;

function writeOf(key: string, value: string, more: Partial<RecordWrite> = {}): RecordWrite {
  const version = `version-${++versions}`;
  return { key, value, version, keepMs: LONG_MS, condition: { kind: "absent" }, ...more };
}

const byVersion = (version: string): RecordWrite["condition"] => ({ kind: "version", version });
const byToken = (token: bigint): RecordWrite["condition"] => ({ kind: "token", token });

/** The record of a write, as it is read. */
const recordOf = ({ value, version }: RecordWrite, token = 0n) => ({ value, version, token });

const cases: readonly Omit<Case, "feature">[] = [
  {
    name: "a record is read as it was written, whatever its key and value",
    async run(bench) {
      const records = await recordsOf(bench);
      const keys = [
        "a",
        "A",
        "a ",
        "é",
        "e\u0301",
        "{0}n:x",
        "%s*[?]\\",
        "'\"$1;--",
        "😀".repeat(60),
      ];
      const values = ["", "0", '{"a":"\\u0000 / \u007f\u2028"}', "line\nand\ttab\r", "😀é"];
      const writes = keys.map((key, i) => writeOf(key, `${key}: ${values[i % values.length]}`));
      writes.push(writeOf("empty", ""));
      for (const write of writes) {
        assert.equal(await records.read(write.key), null);
        assert.deepEqual(await records.write(write), WRITTEN);
      }
      const others = await recordsOf(bench);
      for (const write of writes) {
        assert.deepEqual(await others.read(write.key), recordOf(write));
        const refused = await others.write(writeOf(write.key, "another"));
        assert.deepEqual(refused, { kind: "refused", record: recordOf(write) });
      }
    },
  },
  {
    name: "a record has room for the longest value",
    async run(bench) {
      const records = await recordsOf(bench);
      const write = writeOf("key", "é".repeat(MOST_RECORD_BYTES / 2));
      assert.deepEqual(await records.write(write), WRITTEN);
      assert.deepEqual(await records.read("key"), recordOf(write));
      const next = writeOf("key", "x".repeat(MOST_RECORD_BYTES), {
        condition: byVersion(write.version),
      });
      assert.deepEqual(await records.write(next), WRITTEN);
      const refused = await records.write({ ...write, version: "late" });
      assert.deepEqual(refused, { kind: "refused", record: recordOf(next) });
    },
  },
  {
    name: "a record, a meter and a lock of the same name have nothing in common",
    async run(bench) {
      const store = await bench.store();
      const records = store.records!;
      const claim = bench.lastingClaim("name");
      grantOf(await store.claim(claim, ignore));
      const write = writeOf("name", "value");
      await records.write(write);
      await records.take({ key: "name", units: 1, limit: 1, perUs: 3.6e9, burst: 1 });
      assert.equal((await store.list("", 10)).length, 1);
      const [answer] = await store.release([{ name: "name", grantId: claim.grantId }]);
      assert.equal(answer, "released");
      assert.equal(await store.inspect("name"), null);
      assert.deepEqual(await records.read("name"), recordOf(write));
    },
  },
  {
    name: "many write a record that is absent: one is written, the others get its record",
    async run(bench) {
      const clients = await Promise.all(Array.from({ length: CLIENTS }, () => recordsOf(bench)));
      for (let round = 0; round < 5; round++) {
        const writes = clients.map((_, i) => writeOf(`round ${round}`, `of client ${i}`));
        const answers = await Promise.all(clients.map((one, i) => one.write(writes[i]!)));
        const [at, ...more] = answers.flatMap(({ kind }, i) => (kind === "written" ? [i] : []));
        assert(at !== undefined && more.length === 0, "exactly one is written");
        const record = recordOf(writes[at]!);
        for (const answer of answers.toSpliced(at, 1)) {
          assert.deepEqual(answer, { kind: "refused", record });
        }
        assert.deepEqual(await clients[0]!.read(`round ${round}`), record);
      }
    },
  },
  {
    name: "a record is replaced by its version only, and no update is lost",
    async run(bench) {
      const clients = await Promise.all(Array.from({ length: CLIENTS }, () => recordsOf(bench)));
      const first = writeOf("count", "0");
      const early = writeOf("count", "0", { condition: byVersion(first.version) });
      assert.deepEqual(await clients[0]!.write(early), { kind: "refused", record: null });
      await clients[0]!.write(first);
      const updates = 5;
      const count = async (records: Records): Promise<void> => {
        for (let done = 0; done < updates; ) {
          const { value, version } = (await records.read("count"))!;
          const next = { condition: byVersion(version) };
          const answer = await records.write(writeOf("count", String(Number(value) + 1), next));
          if (answer.kind === "written") done++;
          else assert(answer.record !== null && answer.record.version !== version);
        }
      };
      await Promise.all(clients.map(count));
      assert.equal((await clients[0]!.read("count"))!.value, String(CLIENTS * updates));
    },
  },
  {
    name: "a record refuses a token below its highest, and counts tokens up to 2^63 − 1 exactly",
    async run(bench) {
      const records = await recordsOf(bench);
      let highest = 0n;
      for (const token of [0n, 9n, 9n, 10n, 2n ** 53n, 2n ** 53n + 1n, HIGHEST_TOKEN]) {
        const stale = writeOf("key", "stale", { condition: byToken(highest - 1n) });
        if (highest > 0n) {
          const { kind } = await records.write(stale);
          assert.equal(kind, "refused", `${highest - 1n} is below ${highest}`);
        }
        const write = writeOf("key", String(token), { condition: byToken(token) });
        assert.deepEqual(await records.write(write), WRITTEN);
        assert.deepEqual(await records.read("key"), recordOf(write, token));
        highest = token;
      }
      const { version } = (await records.read("key"))!;
      const next = writeOf("key", "next", { condition: byVersion(version) });
      assert.deepEqual(await records.write(next), WRITTEN);
      assert.deepEqual(await records.read("key"), recordOf(next, HIGHEST_TOKEN));
    },
  },
  {
    name: "a write whose reply was lost is executed once",
    async run(bench) {
      const store = new FaultyStore(await bench.store(), bench.subject.runtime.clock);
      const records = store.records!;
      const sendTwice = async (write: RecordWrite): Promise<WriteAnswer> => {
        store.all = "fail-reply";
        await assert.rejects(async () => records.write(write));
        store.all = "none";
        return records.write(write);
      };
      const first = writeOf("key", "first");
      assert.deepEqual(await sendTwice(first), WRITTEN);
      const second = writeOf("key", "second", { condition: byVersion(first.version) });
      assert.deepEqual(await sendTwice(second), WRITTEN);
      const third = writeOf("key", "third", { condition: byToken(3n) });
      assert.deepEqual(await sendTwice(third), WRITTEN);
      // Copies that arrive late.
      for (const write of [first, second]) {
        assert.deepEqual(await records.write(write), {
          kind: "refused",
          record: recordOf(third, 3n),
        });
      }
      assert.deepEqual(await records.read("key"), recordOf(third, 3n));
    },
  },
  {
    name: "a record is gone when its time is over, and its token with it",
    async run(bench) {
      const records = await recordsOf(bench);
      const keepMs = bench.ttlMs / 4;
      const sentAtMs = bench.nowMs;
      const write = writeOf("key", "value", { keepMs, condition: byToken(7n) });
      assert.deepEqual(await records.write(write), WRITTEN);
      await bench.until("the record is gone", async () => (await records.read("key")) === null);
      // The clocks of store and client may count a little differently.
      assert(bench.nowMs - sentAtMs >= keepMs - 5, "it was there for as long as it is kept");
      const late = writeOf("key", "late", { condition: byVersion(write.version) });
      assert.deepEqual(await records.write(late), { kind: "refused", record: null });
      const next = writeOf("key", "next", { condition: byToken(3n) });
      assert.deepEqual(await records.write(next), WRITTEN);
      assert.deepEqual(await records.read("key"), recordOf(next, 3n));
    },
  },
  {
    name: "a record's time counts from the write that made it",
    async run(bench) {
      const records = await recordsOf(bench);
      const shortMs = bench.ttlMs / 4;
      const first = writeOf("key", "first", { keepMs: shortMs });
      await records.write(first);
      const second = writeOf("key", "second", { condition: byToken(1n) });
      await records.write(second);
      await bench.pass(shortMs * 2);
      assert.deepEqual(await records.read("key"), recordOf(second, 1n));

      const condition = byVersion(second.version);
      const third = writeOf("key", "third", { keepMs: shortMs, condition });
      assert.deepEqual(await records.write(third), WRITTEN);
      // Sent again with another time, as no client does: nothing changes.
      await records.write({ ...third, keepMs: LONG_MS });
      await bench.until("the record is gone", async () => (await records.read("key")) === null);
    },
  },
  {
    name: "a record is there up to its time, and not longer",
    virtualOnly: true,
    async run(bench) {
      const records = await recordsOf(bench);
      const write = writeOf("key", "value", { keepMs: 1_000 });
      await records.write(write);
      await bench.pass(999);
      assert.deepEqual(await records.read("key"), recordOf(write));
      await bench.pass(1);
      assert.equal(await records.read("key"), null);
    },
  },
];

export const recordCases: readonly Case[] = [...cases, ...meterCases].map((one) => ({
  ...one,
  feature: "records",
}));
