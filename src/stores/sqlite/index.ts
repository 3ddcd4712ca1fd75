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
import { type ClaimRecord, type Handover, Rule } from "../rule.js";
import { Pushes } from "../shared/pushes.js";
import { SqliteClaims, type SqliteRecord } from "./claims.js";
import { checkDatabase, type SqliteDatabase } from "./driver.js";
import { explain } from "./errors.js";
import { refuseOtherLibrary } from "./libraries.js";
import { shareLogFiles } from "./log-files.js";
import { OpenedFiles } from "./opened-files.js";
import { patiently } from "./patience.js";
import { refuseUnsafeFile } from "./refusals.js";
import { prepareTables } from "./schema.js";
import { type WakeMessage, WakeSocket, wake } from "./wake.js";
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
    "a restart or power cut of the machine, if its disk keeps what was synced",
    "jumps of the wall clock",
  ],
  grantsTwiceAfter: [
    "its file or log was deleted, replaced or restored from a backup while in use",
    "a process that uses the file has read or copied it by other means than SQLite",
  ],
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
/** Once a second they try again to listen: there may have been no descriptor or no room for a socket. */
const LOOKS_PER_ATTEMPT = 20;

/** What the waiters of one process are told after a step. */
interface Told {
  readonly handedOver: Handover[];
  readonly toLook: ClaimRecord[];
}

/** Locks for the processes of one machine: the rule over a table, one step a write transaction. */
export class SqliteStore implements Store {
  readonly traits = SQLITE_TRAITS;
  readonly #db: SqliteDatabase;
  readonly #file: string;
  readonly #files: OpenedFiles;
  readonly #clock: StoreClock;
  readonly #closeDatabase: boolean;
  readonly #writer: Writer;
  readonly #claims: SqliteClaims;
  readonly #rule: Rule;
  readonly #socket: WakeSocket;
  readonly #pushes = new Pushes();
  /** What the last committed step has to tell waiters is on its way. */
  #delivered: Promise<unknown> = Promise.resolve();
  #transactions = 0;
  /** The most grants that were counted in the file. */
  #grants = 0;
  #closed = false;
  /** Runs where no socket can be had. */
  #looking: NodeJS.Timeout | null = null;

  /** A connection for this store alone, not within a transaction. */
  constructor(db: SqliteDatabase, options: SqliteStoreOptions = {}) {
    this.#db = db;
    this.#clock = options.clock ?? MACHINE_CLOCK;
    this.#closeDatabase = options.closeDatabase ?? false;
    this.#file = fileOf(db);
    // Without fullfsync, a sync on macOS ends in the disk's cache. Elsewhere it changes nothing.
    db.exec("PRAGMA busy_timeout = 0; PRAGMA fullfsync = ON");
    this.#writer = new Writer(db, this.#file, {
      begun: () => this.#begun(),
      committed: () => this.#deliver(),
      rolledBack: () => {
        this.#rule.handedOver = [];
        this.#rule.toLook = new Map();
      },
    });
    this.#files = new OpenedFiles(this.#file);
    this.#claims = new SqliteClaims(db, this.#file, this.#writer, this.#clock.nowMs);
    this.#rule = new Rule(this.#claims, this.#clock);
    this.#socket = new WakeSocket(this.#file, ({ grantId, push }) =>
      this.#pushes.push(grantId, push),
    );
    this.#claims.wake = this.#socket.name;
  }

  async claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    // While this is under way, a close by other Locks leaves the socket open.
    if (claim.queue) this.#pushes.add(claim, push);
    const answer = await this.#writer.run(true, () => {
      const answer = this.#rule.claim(claim);
      // Before others can see the ticket, whose socket they would find missing.
      if (answer.kind === "queued") this.#listen();
      return answer;
    });
    if (answer.kind !== "queued") this.#pushes.forget(claim);
    return answer;
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    const jobs: Promise<readonly RenewAnswer[]>[] = [];
    for (let i = 0; i < renewals.length; i += RENEWALS_A_JOB) {
      const some = renewals.slice(i, i + RENEWALS_A_JOB);
      const renewed = this.#writer.run(false, () => {
        this.#files.refuseIfReplaced();
        return some.map((one) => this.#rule.renew(one));
      });
      jobs.push(renewed.catch((cause) => some.map(() => ({ kind: "unknown", cause }))));
    }
    const answers = (await Promise.all(jobs)).flat();
    // A waiter that learns of its grant from a renewal needs no push, and no open socket.
    for (const [i, { kind }] of answers.entries()) {
      if (kind === "granted" || kind === "lost") this.#pushes.forget(renewals[i]!);
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
    this.#socket.close();
    this.#stopLooking();
    if (this.#closeDatabase) this.#db.close();
  }

  #begun(): void {
    if (this.#writer.durable) this.#refuseIfOthersMayGrant();
    else this.#files.refuseIfDatabaseReplaced();
    if (this.#transactions++ % SWEEP_EVERY === 0) this.#claims.sweep(this.#clock.wallMs());
  }

  /** In durable transactions: nothing is granted in others. */
  #refuseIfOthersMayGrant(): void {
    this.#files.refuseIfReplaced();
    const grants = this.#claims.countGrants();
    if (grants < this.#grants) {
      this.#files.refuse("its contents went back, as if an older copy was restored over it");
    }
    this.#grants = grants;
  }

  #release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    return this.#writer.run(false, () => releases.map((release) => this.#rule.release(release)));
  }

  /** Tells those whose tickets the committed step has granted, and those that have to look. */
  #deliver(): void {
    const { handedOver, toLook } = this.#rule;
    const bySocket = new Map<string, Told>();
    const at = (record: ClaimRecord): Told => {
      const { wake } = record as SqliteRecord;
      const told = bySocket.get(wake) ?? { handedOver: [], toLook: [] };
      bySocket.set(wake, told);
      return told;
    };
    for (const one of handedOver) at(one.record).handedOver.push(one);
    for (const record of toLook.values()) at(record).toLook.push(record);
    this.#rule.handedOver = [];
    this.#rule.toLook = new Map();
    this.#delivered = Promise.all([...bySocket].map(([socket, told]) => this.#tell(socket, told)));
  }

  async #tell(socket: string, { handedOver, toLook }: Told): Promise<void> {
    const messages: WakeMessage[] = [
      ...handedOver.map(({ record: { grantId }, grant }) => {
        return { grantId, push: { kind: "granted", grant } } as const;
      }),
      ...toLook.map(({ grantId }) => ({ grantId, push: { kind: "look" } }) as const),
    ];
    if (socket === this.#socket.name) {
      for (const { grantId, push } of messages) this.#pushes.push(grantId, push);
    } else if ((await wake(this.#file, socket, messages)) === "refused" && handedOver.length > 0) {
      // On to the next in the queue, which that step tells in its turn.
      const dropped = await this.#drop(handedOver).catch(() => false);
      // Not otherwise: what is on its way would still be this.
      if (dropped) await this.#delivered;
    }
  }

  /** Unless it was heard of since the handover: then it is alive and may know of its grant. */
  #drop(all: readonly Handover[]): Promise<boolean> {
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

  #listen(): void {
    if (this.#looking !== null || this.#socket.open()) return;
    let looks = 0;
    this.#looking = setInterval(() => {
      if (++looks % LOOKS_PER_ATTEMPT === 0 && this.#pushes.size > 0 && this.#socket.open()) {
        this.#stopLooking();
      }
      // Once more after it begins to listen: earlier handovers have reached nobody.
      this.#pushes.lookAll();
      if (this.#pushes.size === 0) this.#stopLooking();
    }, LOOK_EVERY_MS).unref();
  }

  #stopLooking(): void {
    if (this.#looking !== null) clearInterval(this.#looking);
    this.#looking = null;
  }

  #read<T>(read: () => T): Promise<T> {
    return patiently(() => {
      try {
        this.#files.refuseIfReplaced();
        return this.#writer.read(read);
      } catch (error) {
        throw explain(error, this.#file);
      }
    });
  }
}

/** Makes the tables if they are missing. A connection for this store alone. */
export function sqliteStore(db: SqliteDatabase, options: SqliteStoreOptions = {}): SqliteStore {
  checkDatabase(db, "sqliteStore");
  checkOptions(options, "the options of sqliteStore", ["closeDatabase", "clock"]);
  const file = fileOf(db);
  // Only our own transaction is rolled back: the connection may come with one of its owner's.
  let begun = false;
  try {
    refuseUnsafeFile(file);
    refuseOtherLibrary(db, file);
    useLog(db, file);
    db.exec("BEGIN IMMEDIATE");
    begun = true;
    prepareTables(db, file);
    db.exec("COMMIT");
    begun = false;
    shareLogFiles(file);
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
