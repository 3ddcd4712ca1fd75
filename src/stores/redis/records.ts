import type {
  MeterTake,
  Records,
  RecordWrite,
  StoredRecord,
  TakeAnswer,
  WriteAnswer,
} from "../../core/records.js";
import { meterKeyOf, recordKeyOf } from "./keys.js";
import type { Replicas } from "./replicas.js";
import type { ScriptRunner } from "./script-runner.js";
import { SCRIPTS } from "./scripts.js";

/** Tokens have one width, because the script compares them as text. */
const TOKEN_DIGITS = 20;

/** Records and meters on a Redis server or cluster: each step is one script. */
export class RedisRecords implements Records {
  readonly #runner: ScriptRunner;
  readonly #replicas: Replicas;

  constructor(runner: ScriptRunner, replicas: Replicas) {
    this.#runner = runner;
    this.#replicas = replicas;
  }

  async read(key: string): Promise<StoredRecord | null> {
    return toRecord(await this.#runner.run(SCRIPTS.readRecord, [recordKeyOf(key)], []));
  }

  /** The write counts once the replicas that the store's option requires have received it, like a grant. */
  async write({ key, value, version, keepMs, condition }: RecordWrite): Promise<WriteAnswer> {
    const { losses } = this.#runner.connection;
    const args = [value, version, String(Math.ceil(keepMs)), condition.kind];
    if (condition.kind === "version") args.push(condition.version);
    if (condition.kind === "token") args.push(String(condition.token).padStart(TOKEN_DIGITS, "0"));
    const reply = await this.#runner.run(SCRIPTS.writeRecord, [recordKeyOf(key)], args);
    if (reply !== "written") return { kind: "refused", record: toRecord(reply) };
    await this.#replicas.receive(losses);
    return { kind: "written" };
  }

  /** A take waits for no replica: a failover may lose the last takes. */
  async take({ key, units, limit, perUs, burst }: MeterTake): Promise<TakeAnswer> {
    const args = [units, limit, perUs, burst].map(String);
    const reply = await this.#runner.run(SCRIPTS.take, [meterKeyOf(key)], args);
    const [remaining, retryAfterUs, fullInUs] = reply.split(" ").map(Number) as [
      number,
      number,
      number,
    ];
    return { allowed: retryAfterUs === 0, remaining, retryAfterUs, fullInUs };
  }
}

function toRecord(reply: string): StoredRecord | null {
  if (reply === "") return null;
  const { value, version, token } = JSON.parse(reply) as Record<keyof StoredRecord, string>;
  return { value, version, token: BigInt(token) };
}
