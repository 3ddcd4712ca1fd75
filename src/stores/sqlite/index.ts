import { statSync } from "node:fs";
import type { StoreClock } from "../../core/clock.js";
import {
  InvalidArgumentError,
  StoreUnavailableError,
  UnsupportedError,
} from "../../core/errors.js";
import type {
  Claim,
  ClaimAnswer,
  HolderInfo,
  NameInfo,
  Push,
  Release,
  ReleaseAnswer,
  RenewAnswer,
  Renewal,
  Store,
  Traits,
} from "../../core/store.js";
import { Rule, type Handover as RuleHandover } from "../rule.js";
import { SqliteClaims, type SqliteRecord } from "./claims.js";
import type { SqliteDatabase } from "./driver.js";
import { explain } from "./errors.js";
import { prepareTables } from "./schema.js";
import { type Handover, hand, WakeSocket } from "./wake.js";
import { Writer } from "./writer.js";

export { openSqlite, type SqliteDatabase, type SqliteStatement } from "./driver.js";

export interface SqliteStoreOptions {
  /** Closes the database with the store. Default false: it is the caller's. */
  closeDatabase?: boolean;
  clock?: StoreClock;
}

export const SQLITE_TRAITS: Traits = {
  store: "SQLite",
  scope: "machine",
  liveness: "lease",
  waiting: "pushed",
  fair: true,
  minTtlMs: 20,
  survives: [
    "the crash of any process",
    "a restart or power cut of the machine",
    "jumps of the wall clock",
  ],
  grantsTwiceAfter: [],
  cannot: {},
};

/** The machine's monotonic clock: all its processes share it, and nobody can set it. */
const MACHINE_CLOCK: StoreClock = {
  nowMs: () => {
    const [seconds, nanoseconds] = process.hrtime();
    return seconds * 1_000 + nanoseconds / 1e6;
  },
  wallMs: () => Date.now(),
};

const SWEEP_EVERY = 1_000;
/** So few that a long batch can be split between turns of the event loop. */
const RENEWALS_A_JOB = 16;
/** How often waiters look for themselves where no socket can be had. */
const LOOK_EVERY_MS = 50;

/** Locks for the processes of one machine: the rule over a table, one step a write transaction. */
export class SqliteStore implements Store {
  readonly traits = SQLITE_TRAITS;
  readonly #db: SqliteDatabase;
  readonly #file: string;
  readonly #inode: number;
  readonly #clock: StoreClock;
  readonly #closeDatabase: boolean;
  readonly #writer: Writer;
  readonly #claims: SqliteClaims;
  readonly #rule: Rule;
  readonly #socket: WakeSocket;
  readonly #pushes = new Map<string, (push: Push) => void>();
  /** The handovers of the last committed step are on their way. */
  #delivered: Promise<unknown> = Promise.resolve();
  #transactions = 0;
  #closed = false;
  #looking: NodeJS.Timeout | null = null;

  /** A connection for this store alone, not within a transaction. */
  constructor(db: SqliteDatabase, options: SqliteStoreOptions = {}) {
    this.#db = db;
    this.#clock = options.clock ?? MACHINE_CLOCK;
    this.#closeDatabase = options.closeDatabase ?? false;
    this.#file = fileOf(db);
    db.exec("PRAGMA busy_timeout = 0");
    this.#writer = new Writer(db, this.#file, {
      begun: () => this.#begun(),
      committed: () => this.#deliver(),
      rolledBack: () => {
        this.#rule.handedOver = [];
      },
    });
    this.#inode = statSync(this.#file).ino;
    this.#claims = new SqliteClaims(db, this.#file, this.#writer, this.#clock.nowMs);
    this.#rule = new Rule(this.#claims, this.#clock);
    this.#socket = new WakeSocket(this.#file, (handover) => this.#handedOver(handover));
  }

  async claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    // Before the ticket is seen: its push may come from another process at once. And while this is
    // under way, a close by other Locks leaves the socket open.
    if (claim.queue) this.#pushes.set(claim.grantId, push);
    const answer = await this.#claim(claim);
    if (answer.kind !== "queued") this.#pushes.delete(claim.grantId);
    return answer;
  }

  async #claim(claim: Claim): Promise<ClaimAnswer> {
    const ask = (queue: boolean): Promise<ClaimAnswer> =>
      this.#writer.run(true, () => this.#rule.claim({ ...claim, queue }));
    if (claim.queue && this.#claims.wake === "") {
      // The name is free as a rule, and then no socket is needed.
      const answer = await ask(false);
      if (answer.kind !== "busy") return answer;
      const address = await this.#socket.open();
      if (!this.#closed) this.#claims.wake = address;
      if (!this.#closed && address === "") this.#look();
    }
    return ask(claim.queue);
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    const jobs: Promise<readonly RenewAnswer[]>[] = [];
    for (let i = 0; i < renewals.length; i += RENEWALS_A_JOB) {
      const some = renewals.slice(i, i + RENEWALS_A_JOB);
      const renewed = this.#writer.run(false, () => some.map((one) => this.#rule.renew(one)));
      jobs.push(renewed.catch((cause) => some.map(() => ({ kind: "unknown", cause }))));
    }
    const answers = (await Promise.all(jobs)).flat();
    // Who learns it so is no longer waited for, and does not keep the socket open.
    for (const [i, { kind }] of answers.entries()) {
      if (kind === "granted" || kind === "lost") this.#pushes.delete(renewals[i]!.grantId);
    }
    return answers;
  }

  async release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    for (const { grantId } of releases) this.#pushes.delete(grantId);
    const answers = await this.#release(releases);
    // Whoever exits after a release has told the next.
    await this.#delivered;
    return answers;
  }

  async revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    const revoked = await this.#writer.run(false, () => this.#rule.revoke(name, by));
    await this.#delivered;
    return revoked;
  }

  async resize(name: string, limit: number): Promise<number | null> {
    const before = await this.#writer.run(false, () => this.#rule.resize(name, limit));
    await this.#delivered;
    return before;
  }

  async inspect(name: string): Promise<NameInfo | null> {
    return this.#read(() => this.#rule.inspect(name));
  }

  async list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    return this.#read(() => this.#rule.list(this.#claims.names(prefix), limit));
  }

  close(): void {
    // The waiters of other Locks on the same connection still have to be told.
    if (this.#closed || (!this.#closeDatabase && this.#pushes.size > 0)) return;
    this.#closed = this.#closeDatabase;
    this.#claims.wake = "";
    this.#socket.close();
    if (this.#looking !== null) clearInterval(this.#looking);
    this.#looking = null;
    if (this.#closeDatabase) this.#db.close();
  }

  #begun(): void {
    if (this.#transactions++ % SWEEP_EVERY === 0) this.#claims.sweep(this.#clock.wallMs());
    // A file that was deleted or replaced is no longer the one that others see.
    if (statSync(this.#file, { throwIfNoEntry: false })?.ino === this.#inode) return;
    throw new StoreUnavailableError(
      `the SQLite file ${this.#file} was deleted or replaced while in use; connect again`,
      { retryable: false },
    );
  }

  #release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    return this.#writer.run(false, () => releases.map((release) => this.#rule.release(release)));
  }

  /** Tells those whose tickets the committed step has granted. */
  #deliver(): void {
    const bySocket = new Map<string, RuleHandover[]>();
    for (const one of this.#rule.handedOver) {
      const { wake } = one.record as SqliteRecord;
      const there = bySocket.get(wake);
      if (there === undefined) bySocket.set(wake, [one]);
      else there.push(one);
    }
    this.#rule.handedOver = [];
    const hands = [...bySocket].map(([socket, all]) => this.#hand(socket, all));
    this.#delivered = Promise.all(hands);
  }

  async #hand(socket: string, all: readonly RuleHandover[]): Promise<void> {
    const handovers = all.map(({ record, grant }) => ({ grantId: record.grantId, grant }));
    if (socket === this.#claims.wake) for (const one of handovers) this.#handedOver(one);
    else if (socket !== "" && (await hand(this.#file, socket, handovers)) === "dead") {
      // On to the next in the queue, which that step tells in its turn.
      const dropped = await this.#drop(all).catch(() => false);
      // Not otherwise: what is on its way would still be this.
      if (dropped) await this.#delivered;
    }
  }

  /** Unless it was heard of since the handover: then it is alive and may know of its grant. */
  #drop(all: readonly RuleHandover[]): Promise<boolean> {
    return this.#writer.run(false, () => {
      for (const { record, grant } of all) {
        const { name, grantId } = record;
        const now = this.#claims.find(name, grantId);
        const unheard = now?.token === grant.token && now.seq === grant.seq;
        if (unheard) this.#rule.release({ name, grantId, unused: true });
      }
      return true;
    });
  }

  #handedOver({ grantId, grant }: Handover): void {
    const push = this.#pushes.get(grantId);
    this.#pushes.delete(grantId);
    push?.({ kind: "granted", grant });
  }

  #look(): void {
    this.#looking ??= setInterval(() => {
      for (const push of this.#pushes.values()) push({ kind: "look" });
    }, LOOK_EVERY_MS).unref();
  }

  #read<T>(read: () => T): T {
    try {
      return read();
    } catch (error) {
      throw explain(error, this.#file);
    }
  }
}

/** Makes the tables if they are missing. A connection for this store alone. */
export function sqliteStore(db: SqliteDatabase, options: SqliteStoreOptions = {}): SqliteStore {
  const file = fileOf(db);
  // Only our own transaction is rolled back: the connection may come with one of its owner's.
  let begun = false;
  try {
    useLog(db, file);
    db.exec("BEGIN IMMEDIATE");
    begun = true;
    prepareTables(db, file);
    db.exec("COMMIT");
    begun = false;
    return new SqliteStore(db, options);
  } catch (error) {
    if (begun) rollBack(db);
    throw explain(error, file);
  }
}

function rollBack(db: SqliteDatabase): void {
  try {
    db.exec("ROLLBACK");
  } catch {
    // SQLite has rolled back by itself.
  }
}

/** Where it can't have a write-ahead log, SQLite silently goes on without. */
function useLog(db: SqliteDatabase, file: string): void {
  const { journal_mode } = db.prepare("PRAGMA journal_mode = WAL").get() as {
    journal_mode: string;
  };
  if (journal_mode === "wal") return;
  throw new UnsupportedError(
    `the SQLite file ${file} can't have a write-ahead log (it stays in mode "${journal_mode}"), which Holdfast needs`,
  );
}

function fileOf(db: SqliteDatabase): string {
  const main = db.prepare("PRAGMA database_list").all()[0] as { file: string };
  if (main.file === "") {
    throw new InvalidArgumentError(
      "an SQLite database in memory is seen by one connection only; use memoryStore()",
    );
  }
  return main.file;
}
