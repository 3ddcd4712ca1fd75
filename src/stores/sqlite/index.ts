import type { StoreClock } from "../../core/clock.js";
import { InvalidArgumentError, UnsupportedError } from "../../core/errors.js";
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
import { checkOptions } from "../../core/validate.js";
import { type DuePush, Rule } from "../rule.js";
import { inspectName, listNames } from "../shared/name-info.js";
import { slices } from "../shared/slices.js";
import { SqliteClaims } from "./claims.js";
import { checkDatabase, type SqliteDatabase } from "./driver.js";
import { toStoreError } from "./errors.js";
import { shareLogFiles } from "./file.js";
import { Notifier } from "./notifier.js";
import { SqliteRecords } from "./records.js";
import { ReplacementCheck } from "./replacement-check.js";
import { retryWhileBusy } from "./retry.js";
import { prepareTables } from "./schema.js";
import { inTransaction } from "./transaction.js";
import { refuseOtherLibrary, refuseUnsafeFile } from "./unsafe-file.js";
import { Writer } from "./writer.js";

export { openSqlite, type SqliteDatabase, type SqliteStatement } from "./driver.js";

/** Options of `sqliteStore`. */
export interface SqliteStoreOptions {
  /** Closes the connection with the store. Default false: the caller closes it. */
  closeDatabase?: boolean;
  /** Default: the machine's monotonic clock, and its wall clock for tokens, `atLeast`, records and meters. */
  clock?: StoreClock;
}

/** The traits of the SQLite store. */
export const SQLITE_TRAITS: Traits = {
  store: "SQLite",
  scope: "machine",
  liveness: "lease",
  waiting: "pushed",
  fair: true,
  minTtlMs: 20,
  survives: [
    "the crash of any process",
    "a restart or power cut of the machine, if its disk keeps what was synced",
    "jumps of the wall clock",
  ],
  grantsTwiceAfter: [
    "its file or log was deleted, replaced or restored from a backup while in use",
    "a process that uses the file has read or copied it by other means than SQLite",
  ],
  cannot: {},
};

/** All processes of the machine share its monotonic clock, and nobody can set it. */
const MACHINE_CLOCK: StoreClock = {
  nowMs: () => {
    const [seconds, nanoseconds] = process.hrtime();
    return seconds * 1_000 + nanoseconds / 1e6;
  },
  wallMs: () => Date.now(),
};

/** Expired claims are swept in one of this many transactions. */
const TRANSACTIONS_PER_SWEEP = 1_000;
/** The most renewals in one job, so that the writer can split a long batch between turns of the event loop. */
const RENEWALS_PER_JOB = 16;

/** Locks for the processes of one machine: the rule, with the claims in a table; a step is a write transaction. */
export class SqliteStore implements Store {
  readonly traits = SQLITE_TRAITS;
  readonly records: SqliteRecords;
  readonly #db: SqliteDatabase;
  readonly #file: string;
  readonly #replacement: ReplacementCheck;
  readonly #clock: StoreClock;
  readonly #closeDatabase: boolean;
  readonly #writer: Writer;
  readonly #claims: SqliteClaims;
  readonly #rule: Rule;
  readonly #notifier: Notifier;
  #transactions = 0;
  /** The highest count of grants that this process has read from the file. */
  #grants = 0;
  #closed = false;

  /** The connection is for this store alone, and no transaction is open on it. */
  constructor(db: SqliteDatabase, options: SqliteStoreOptions = {}) {
    this.#db = db;
    this.#clock = options.clock ?? MACHINE_CLOCK;
    this.#closeDatabase = options.closeDatabase ?? false;
    this.#file = fileOf(db);
    // Without fullfsync, a sync on macOS ends in the disk's cache. Other systems ignore it.
    db.exec("PRAGMA busy_timeout = 0; PRAGMA fullfsync = ON");
    this.#writer = new Writer(db, this.#file, {
      begun: () => this.#begun(),
      committed: () => this.#notifier.send(this.#rule.takePushes()),
      rolledBack: () => void this.#rule.takePushes(),
    });
    this.#replacement = new ReplacementCheck(this.#file);
    this.#notifier = new Notifier(this.#file, (unreached) => this.#passOn(unreached));
    this.#claims = new SqliteClaims(
      db,
      this.#file,
      this.#writer,
      this.#notifier.socketName,
      this.#clock.nowMs,
    );
    this.#rule = new Rule(this.#claims, this.#clock);
    this.records = new SqliteRecords(db, this.#file, this.#writer, this.#clock, (read) =>
      this.#read(read),
    );
  }

  async claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    // From now on, other Locks on this connection leave the socket open when they close.
    const waiter = claim.queue ? this.#notifier.waiters.add(claim, push) : null;
    const claimed = (): ClaimAnswer => {
      const answer = this.#rule.claim(claim);
      // The socket is opened before the commit, because a process that can see the ticket must find its socket.
      if (answer.kind === "queued") this.#notifier.listen();
      return answer;
    };
    const answer = await this.#writer.run(claimed, { durable: true });
    if (waiter !== null && answer.kind !== "queued") this.#notifier.waiters.removeAnswered(waiter);
    return answer;
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    const jobs: Promise<readonly RenewAnswer[]>[] = [];
    for (const some of slices(renewals, RENEWALS_PER_JOB)) {
      const renewed = this.#writer.run(() => {
        this.#replacement.refuseIfReplaced();
        return some.map((one) => this.#rule.renew(one));
      });
      jobs.push(renewed.catch((cause) => some.map(() => ({ kind: "unknown", cause }))));
    }
    const answers = (await Promise.all(jobs)).flat();
    this.#notifier.waiters.removeSettled(renewals, answers);
    return answers;
  }

  release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    for (const { grantId } of releases) this.#notifier.waiters.delete(grantId);
    return this.#runAndSend(() => releases.map((release) => this.#rule.release(release)));
  }

  revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    return this.#runAndSend(() => this.#rule.revoke(name, by));
  }

  resize(name: string, limit: number): Promise<number | null> {
    return this.#runAndSend(() => this.#rule.resize(name, limit));
  }

  async inspect(name: string): Promise<NameInfo | null> {
    return this.#read(() => inspectName(this.#claims, this.#clock, name));
  }

  async list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    return this.#read(() =>
      listNames(this.#claims, this.#clock, this.#claims.names(prefix), limit),
    );
  }

  close(): void {
    // Other Locks on the same connection may have waiters that still need their pushes.
    if (this.#closed || (!this.#closeDatabase && this.#notifier.waiters.size > 0)) return;
    this.#closed = this.#closeDatabase;
    this.#notifier.close();
    if (this.#closeDatabase) this.#db.close();
  }

  /** A process that exits after this has notified the next waiter. */
  async #runAndSend<T>(step: () => T): Promise<T> {
    const answer = await this.#writer.run(step);
    await this.#notifier.sent;
    return answer;
  }

  #begun(): void {
    if (this.#writer.durable) this.#refuseIfOthersMayGrant();
    else this.#replacement.refuseIfDatabaseReplaced();
    if (this.#transactions++ % TRANSACTIONS_PER_SWEEP === 0)
      this.#claims.sweep(this.#clock.wallMs());
  }

  /** Only durable transactions grant, so only they need this check. */
  #refuseIfOthersMayGrant(): void {
    this.#replacement.refuseIfReplaced();
    const grants = this.#claims.countGrants();
    if (grants < this.#grants) {
      this.#replacement.refuse("its contents went back, as if an older copy was restored over it");
    }
    this.#grants = grants;
  }

  /** The name goes to the next waiter, unless this one has sent a request since: then it is alive and may know of its grant. */
  #passOn(unreached: readonly DuePush[]): Promise<boolean> {
    return this.#writer.run(() => {
      for (const { record, push } of unreached) {
        if (push.kind !== "granted") continue;
        const { name, grantId } = record;
        const now = this.#claims.find(name, grantId);
        const isSilent = now?.token === push.grant.token && now.seq === push.grant.seq;
        if (isSilent) this.#rule.release({ name, grantId, unused: true });
      }
      return true;
    });
  }

  #read<T>(read: () => T): Promise<T> {
    return retryWhileBusy(() => {
      try {
        this.#replacement.refuseIfReplaced();
        return this.#writer.read(read);
      } catch (error) {
        throw toStoreError(error, this.#file);
      }
    });
  }
}

/**
 * A store in an open SQLite database, on a connection that nothing else uses. Makes its tables if they
 * are missing. Throws `UnsupportedError` where locks in the file would not be safe, and
 * `StoreUnavailableError` if the file can't be used.
 *
 * @example
 * ```ts
 * import { createLocks } from "holdfast";
 * import { openSqlite, sqliteStore } from "holdfast/stores/sqlite";
 *
 * const db = await openSqlite("/var/lib/app/locks.db");
 * const locks = createLocks(sqliteStore(db, { closeDatabase: true }), { ttl: "30s" });
 * await locks.withLock("import", async () => console.log("one at a time on this machine"));
 * await locks.close();
 * ```
 */
export function sqliteStore(db: SqliteDatabase, options: SqliteStoreOptions = {}): SqliteStore {
  checkDatabase(db, "sqliteStore");
  checkOptions(options, "the options of sqliteStore", ["closeDatabase", "clock"]);
  const file = fileOf(db);
  try {
    refuseUnsafeFile(file);
    refuseOtherLibrary(db, file);
    useWriteAheadLog(db, file);
    inTransaction(db, () => prepareTables(db, file));
    shareLogFiles(file);
    return new SqliteStore(db, options);
  } catch (error) {
    throw toStoreError(error, file);
  }
}

/** SQLite says nothing where a file can't have a write-ahead log, and goes on without one. */
function useWriteAheadLog(db: SqliteDatabase, file: string): void {
  const { journal_mode } = db.prepare("PRAGMA journal_mode = WAL").get() as {
    journal_mode: string;
  };
  if (journal_mode === "wal") return;
  throw new UnsupportedError(
    `the SQLite file ${file} can't have a write-ahead log (it stays in mode "${journal_mode}"), which Holdfast needs: use a file on a local disk`,
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
