import type { StoreClock } from "../../core/clock.js";
import type {
  MeterTake,
  Records,
  RecordWrite,
  StoredRecord,
  TakeAnswer,
  WriteAnswer,
} from "../../core/records.js";
import { type Meter, taken, writtenRecord } from "../records-rule.js";

interface ExpiringEntry<Value> {
  readonly value: Value;
  readonly untilMs: number;
}

/** Records and meters in maps. */
export class MemoryRecords implements Records {
  readonly #clock: StoreClock;
  readonly #records: ExpiringMap<StoredRecord>;
  readonly #meters: ExpiringMap<Meter>;

  constructor(clock: StoreClock) {
    this.#clock = clock;
    this.#records = new ExpiringMap(clock);
    this.#meters = new ExpiringMap(clock);
  }

  read(key: string): StoredRecord | null {
    return this.#records.get(key);
  }

  write(write: RecordWrite): WriteAnswer {
    const record = this.read(write.key);
    const written = writtenRecord(record, write);
    if (written === null) return { kind: "refused", record };
    if (written !== record) this.#records.set(write.key, written, write.keepMs);
    return { kind: "written" };
  }

  take(take: MeterTake): TakeAnswer {
    const nowUs = Math.floor(this.#clock.nowMs() * 1_000);
    const { meter, answer } = taken(this.#meters.get(take.key), take, nowUs);
    if (meter === null) this.#meters.delete(take.key);
    else this.#meters.set(take.key, meter, answer.fullInUs / 1_000);
    return answer;
  }
}

/** A map whose entries end by themselves. */
class ExpiringMap<Value> {
  readonly #clock: StoreClock;
  readonly #entries = new Map<string, ExpiringEntry<Value>>();
  #cleaning: Iterator<[string, ExpiringEntry<Value>]> = this.#entries.entries();

  constructor(clock: StoreClock) {
    this.#clock = clock;
  }

  get(key: string): Value | null {
    const entry = this.#entries.get(key);
    return entry === undefined || this.#isOver(entry) ? null : entry.value;
  }

  set(key: string, value: Value, keepMs: number): void {
    this.#entries.set(key, { value, untilMs: this.#clock.nowMs() + keepMs });
    this.#clean();
  }

  delete(key: string): void {
    this.#entries.delete(key);
  }

  #isOver({ untilMs }: ExpiringEntry<Value>): boolean {
    return untilMs <= this.#clock.nowMs();
  }

  /** Each new entry checks two old ones, so the map stays below twice the number of entries that are not over. */
  #clean(): void {
    for (let i = 0; i < 2; i++) {
      const { done, value } = this.#cleaning.next();
      if (done) this.#cleaning = this.#entries.entries();
      else if (this.#isOver(value[1])) this.#entries.delete(value[0]);
    }
  }
}
