import { isDeepStrictEqual } from "node:util";
import { expect } from "vitest";
import type { MeterTake, Records, RecordWrite, StoredRecord } from "../../src/core/records.js";
import type { Awaitable } from "../../src/core/store.js";
import { type Meter, taken, writtenRecord } from "../../src/stores/records-rule.js";
import { seededRandom } from "../../src/testing.js";

/** The store of a comparison, and what its test can see of it. */
export interface ComparedRecords {
  /** Clients of the same data. */
  readonly clients: readonly Records[];
  /** Lets time pass on the store's clock. */
  pass(ms: number): Awaitable<unknown>;
  /** A clock that runs with the store's, in µs. */
  nowUs(): number;
  /** For a store on a clock of its own: the meter as it keeps it; null: it keeps none. */
  readonly meterOf?: (key: string) => Awaitable<Meter | null>;
}

/** How much the clocks of test and store may differ by, if they are two. */
const SLACK_US = 2_000;
const KEYS = ["a", "b"];
const VERSIONS = 4;
const SHORT_MS = 20;
const LONG_MS = 3_600_000;
const STEPS = 40;
const NUMBERS = [
  { limit: 1, perUs: 7_000, burst: 2 },
  { limit: 3, perUs: 10_000, burst: 5 },
  { limit: 1_000, perUs: 3.6e9, burst: 10 },
  { limit: 7_919, perUs: 1_000_003, burst: 4_001 },
  { limit: 52_000, perUs: 8.64e10, burst: 52_000 },
  { limit: 4.5e9, perUs: 1_000_000, burst: 4.5e9 },
  { limit: 1, perUs: 2 ** 52 - 1, burst: 1 },
  // Full after the year 2255, where whole numbers end.
  { limit: 1, perUs: 2 ** 51, burst: 3 },
];

/** A state that a record may be in: while its time ends, there are two. */
interface Possible {
  readonly record: StoredRecord | null;
  /** When it ends, at the earliest and at the latest; in µs. */
  readonly ends: readonly [number, number];
}

const NONE: Possible = { record: null, ends: [0, 0] };

/** The cases that a comparison has met: a test asserts that none is missing. */
export interface Met {
  written: number;
  repeated: number;
  refused: number;
  expired: number;
  allowed: number;
  delayed: number;
  /** Takes whose time the store has told. */
  exact: number;
}

/** Runs random requests on a store, and fails unless it replies like the rule. */
export async function compareRecordsWithRule(
  store: ComparedRecords,
  { runs, seed }: { readonly runs: number; readonly seed: number },
): Promise<Met> {
  const met: Met = {
    written: 0,
    repeated: 0,
    refused: 0,
    expired: 0,
    allowed: 0,
    delayed: 0,
    exact: 0,
  };
  for (let run = 0; run < runs; run++) {
    await new Comparison(store, seed + run, met).run();
  }
  return met;
}

class Comparison {
  readonly #store: ComparedRecords;
  readonly #seed: number;
  readonly #met: Met;
  readonly #random: () => number;
  readonly #slackUs: number;
  readonly #records = new Map<string, readonly Possible[]>();
  readonly #meters = new Map<string, Meter | null>();
  readonly #steps: string[] = [];

  constructor(store: ComparedRecords, seed: number, met: Met) {
    this.#store = store;
    this.#slackUs = store.meterOf === undefined ? 0 : SLACK_US;
    this.#seed = seed;
    this.#met = met;
    this.#random = seededRandom(seed).unit;
  }

  async run(): Promise<void> {
    for (let step = 0; step < STEPS; step++) {
      const key = `${this.#seed}:${this.#pick(KEYS)}`;
      const dice = this.#random();
      if (dice < 0.15) await this.#pass(this.#pick([1, 5, SHORT_MS * 2]));
      else if (dice < 0.3) await this.#read(key);
      else if (dice < 0.65) await this.#write(this.#drawWrite(key));
      else await this.#take({ key, ...this.#drawTake() });
    }
  }

  #pick<T>(from: readonly T[]): T {
    return from[Math.floor(this.#random() * from.length)]!;
  }

  get #client(): Records {
    return this.#pick(this.#store.clients);
  }

  async #pass(ms: number): Promise<void> {
    this.#steps.push(`pass ${ms}`);
    await this.#store.pass(ms);
  }

  #drawVersion(): string {
    return `${this.#seed}-${Math.floor(this.#random() * VERSIONS)}`;
  }

  #drawWrite(key: string): RecordWrite {
    const condition = this.#pick<RecordWrite["condition"]>([
      { kind: "absent" },
      { kind: "version", version: this.#drawVersion() },
      {
        kind: "token",
        token: this.#pick([0n, 9n, 10n, 2n ** 53n, 2n ** 53n + 1n, 2n ** 63n - 1n]),
      },
    ]);
    const version = this.#drawVersion();
    const keepMs = this.#pick([SHORT_MS, SHORT_MS + 0.5, LONG_MS]);
    return { key, value: `${this.#steps.length}`, version, keepMs, condition };
  }

  #drawTake(): Omit<MeterTake, "key"> {
    // Mostly the same numbers for one meter.
    const numbers =
      this.#random() < 0.8 ? NUMBERS[this.#seed % NUMBERS.length]! : this.#pick(NUMBERS);
    const units = this.#pick([0, 1, Math.ceil(numbers.burst / 2), numbers.burst]);
    return { ...numbers, units };
  }

  async #read(key: string): Promise<void> {
    await this.#compare(
      key,
      `read ${key}`,
      () => this.#client.read(key),
      (record) => ({ answer: record }),
    );
  }

  async #write(write: RecordWrite): Promise<void> {
    const { key, version, keepMs, condition } = write;
    const what = `write ${key} ${version} ${keepMs} ${condition.kind} ${Object.values(condition)[1]}`;
    const answer = await this.#compare(
      key,
      what,
      () => this.#client.write(write),
      (record) => {
        const written = writtenRecord(record, write);
        if (written === null) return { answer: { kind: "refused", record } };
        return {
          answer: { kind: "written" },
          ...(written === record ? {} : { written, keepMs: write.keepMs }),
        };
      },
    );
    this.#met[(answer as { kind: "written" | "refused" }).kind]++;
  }

  /** Sends a request, and keeps the states that explain the reply. `rule`: the reply in one of them. */
  async #compare(
    key: string,
    what: string,
    send: () => Awaitable<unknown>,
    rule: (record: StoredRecord | null) => {
      answer: unknown;
      written?: StoredRecord;
      keepMs?: number;
    },
  ): Promise<unknown> {
    const slackUs = this.#slackUs;
    const sentUs = this.#store.nowUs();
    const answer = await send();
    const repliedUs = this.#store.nowUs();
    this.#steps.push(what);
    const states = (this.#records.get(key) ?? [NONE]).flatMap((state) => {
      if (state.record === null || sentUs - slackUs > state.ends[1]) return [NONE];
      return repliedUs + slackUs < state.ends[0] ? [state] : [state, NONE];
    });
    const known = this.#records.get(key)?.every(({ record }) => record !== null) ?? false;
    if (known && states.every(({ record }) => record === null)) this.#met.expired++;
    const outcomes = states.map((state) => ({ state, ...rule(state.record) }));
    const fitting = outcomes.filter((one) => isDeepStrictEqual(one.answer, answer));
    if (fitting.length === 0) {
      expect(answer, this.#describe()).toEqual(outcomes[0]!.answer);
      expect.unreachable(this.#describe());
    }
    const next = fitting.map(({ state, written, keepMs = 0 }): Possible => {
      if (written === undefined) return state;
      const keepUs = Math.ceil(keepMs) * 1_000;
      return {
        record: written,
        ends: [sentUs + keepMs * 1_000 - slackUs, repliedUs + keepUs + slackUs],
      };
    });
    const isRepeated = fitting.some(({ state, written, answer }) => {
      return (
        written === undefined &&
        isDeepStrictEqual(answer, { kind: "written" }) &&
        state.record !== null
      );
    });
    if (isRepeated) this.#met.repeated++;
    this.#records.set(key, next);
    return answer;
  }

  /** The store's own meter tells at what time the take was executed, so the comparison is exact. */
  async #take(take: MeterTake): Promise<void> {
    const { key, units, limit, perUs, burst } = take;
    this.#steps.push(`take ${key} ${units} of ${burst}, ${limit} per ${perUs}`);
    const meterOf = this.#store.meterOf ?? (() => this.#meters.get(key) ?? null);
    const before = await meterOf(key);
    const sentUs = this.#store.nowUs();
    const answer = await this.#client.take(take);
    const repliedUs = this.#store.nowUs();
    this.#met[answer.allowed ? "allowed" : "delayed"]++;
    if (this.#store.meterOf === undefined) {
      const expected = taken(before, take, repliedUs);
      expect(answer, this.#describe()).toEqual(expected.answer);
      this.#meters.set(key, expected.meter);
      return;
    }
    const after = await meterOf(key);
    // A full meter has no time, and the reply is the same at any. A meter that is full by now tells no time.
    if (answer.fullInUs > 0 && (after === null || after.fullAtUs === Number.MAX_SAFE_INTEGER))
      return;
    const executedUs = after === null ? repliedUs : after.fullAtUs - answer.fullInUs;
    expect(executedUs, this.#describe()).toBeGreaterThanOrEqual(sentUs - this.#slackUs);
    expect(executedUs, this.#describe()).toBeLessThanOrEqual(repliedUs + this.#slackUs);
    const expected = taken(before, take, executedUs);
    expect({ answer, meter: after }, this.#describe()).toEqual(expected);
    this.#met.exact++;
  }

  #describe(): string {
    return `seed ${this.#seed}:\n${this.#steps.join("\n")}\n`;
  }
}
