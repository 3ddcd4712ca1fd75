import { randomBytes } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { appendFile, mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ChildServer, type Place } from "./child-server.js";
import { isRoot } from "./requirements.js";

const USER = "postgres";
const AUTH = "scram-sha-256";
const PREPARE_MS = 30_000;
/**
 * A variable of the environment, for tests that start many servers: a folder where the first one leaves its initial data
 * for the others to copy, which takes a third of the time. Its file `password` has the password of all of them.
 */
export const TEMPLATES = "HOLDFAST_LAB_TEMPLATES";

export interface PostgresOptions {
  /** The server is a standby that follows this one, asynchronously. */
  readonly standbyOf?: PostgresServer;
  /** Further settings of postgresql.conf. */
  readonly config?: Readonly<Record<string, string>>;
}

export class PostgresServer extends ChildServer {
  readonly url: string;
  /** A random password: other users of the machine can reach the port, and the superuser can run programs. */
  readonly password: string;
  /** Fast shutdown: clients are disconnected, data is written. */
  protected override readonly stopSignal = "SIGINT";
  #options: PostgresOptions;
  readonly #initdb: string;
  readonly #postgres: string;

  constructor(place: Place, options: PostgresOptions) {
    super(place);
    this.#options = options;
    const templates = process.env[TEMPLATES];
    // A standby has the users of its primary.
    this.password =
      options.standbyOf?.password ??
      (templates === undefined
        ? randomBytes(16).toString("hex")
        : readFileSync(join(templates, "password"), "utf8"));
    this.#initdb = place.find("initdb");
    this.#postgres = place.find("postgres");
    this.url = `postgres://${USER}:${this.password}@${this.address}:${this.port}/postgres`;
    place.onEnd(this.#dropSharedMemory);
  }

  /** Runs psql, and resolves to its output without decoration; rejects on the first error. */
  sql(text: string): Promise<string> {
    return psql(this.place, "postgres", text, this.password);
  }

  /** How many statements clients sent, with those of transaction control, without those inside functions. */
  async commands(): Promise<number> {
    const count = `SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
      WHERE query NOT LIKE '%pg_stat_statements%'`;
    return Number(await this.sql(count));
  }

  /** Ends the recovery of a standby: it is a primary from now on. */
  async promote(): Promise<void> {
    await this.sql("SELECT pg_promote()");
  }

  /** Becomes a standby of a server that was a standby of its own; its data is copied anew. */
  async follow(primary: PostgresServer): Promise<void> {
    this.#options = { ...this.#options, standbyOf: primary };
    await this.wipe();
  }

  protected override async prepare(): Promise<void> {
    const { data } = this.place;
    const { standbyOf } = this.#options;
    const templates = process.env[TEMPLATES];
    if (standbyOf !== undefined) await this.#copy(standbyOf);
    else if (templates !== undefined) await this.#copyTemplate(templates);
    else await this.#initialize(data);
  }

  async #copyTemplate(templates: string): Promise<void> {
    const { data, run } = this.place;
    const template = join(templates, "postgres");
    if (!existsSync(template)) {
      const fresh = await mkdtemp(join(templates, "fresh-"));
      await this.#initialize(fresh);
      await rename(fresh, template).catch((error: NodeJS.ErrnoException) => {
        // Another server was first.
        if (error.code !== "ENOTEMPTY" && error.code !== "EEXIST") throw error;
      });
    }
    await run(["cp", "-a", `${template}/.`, data], { timeoutMs: PREPARE_MS });
  }

  async #initialize(data: string): Promise<void> {
    const { home, run } = this.place;
    if (isRoot()) await run(["chown", USER, data]);
    const file = join(home, "password");
    await writeForPostgres(this.place, file, this.password);
    const make = [this.#initdb, "-D", data, "-U", USER, "-A", AUTH, `--pwfile=${file}`];
    await run([...asPostgres(this.place), ...make, "-E", "UTF8", "--no-locale", "--no-sync"], {
      timeoutMs: PREPARE_MS,
    });
    await rm(file);
    // Admits clients in other network namespaces.
    await appendFile(join(data, "pg_hba.conf"), `host all all all ${AUTH}\n`);
  }

  async #copy({ address, port, password }: PostgresServer): Promise<void> {
    const { data, find, run } = this.place;
    if (isRoot()) await run(["chown", USER, data]);
    const from = ["-h", address, "-p", String(port), "-U", USER];
    const copy = [find("pg_basebackup"), ...from, "-D", data, "-R", "-X", "stream", "-c", "fast"];
    await run([...asPostgres(this.place), ...copy, "--no-sync"], {
      timeoutMs: PREPARE_MS,
      env: { PGPASSWORD: password },
    });
    if (isRoot()) await run(["chmod", "700", data]);
  }

  protected command(): readonly string[] {
    const settings: Record<string, string> = {
      port: String(this.port),
      listen_addresses: this.address,
      unix_socket_directories: "",
      // In its folder, so that a kill leaves nothing in /dev/shm.
      dynamic_shared_memory_type: "mmap",
      shared_preload_libraries: "pg_stat_statements",
      "pg_stat_statements.save": "off",
      "pg_stat_statements.max": "20000",
      ...this.#options.config,
    };
    return [
      ...asPostgres(this.place),
      ...[this.#postgres, "-D", this.place.data],
      ...Object.entries(settings).flatMap(([key, value]) => ["-c", `${key}=${value}`]),
    ];
  }

  protected async answers(): Promise<boolean> {
    return (await this.sql("SELECT 1")) === "1";
  }

  protected override async afterStart(): Promise<void> {
    // A standby can't be written to.
    if ((await this.sql("SELECT pg_is_in_recovery()")) === "t") return;
    await this.sql(`SET client_min_messages = warning;
      CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset()`);
  }

  protected override async afterKill(): Promise<void> {
    await this.place.run(["sh", "-c", this.#dropSharedMemory]);
  }

  /**
   * Removes the shared memory segment by which PostgreSQL finds out whether an earlier server still
   * runs; the lock file has its number.
   */
  get #dropSharedMemory(): string {
    const file = `'${join(this.place.data, "postmaster.pid")}'`;
    return `[ ! -e ${file} ] || { ipcrm -m "$(awk 'NR == 7 { print $2 }' ${file})" || :; } 2> /dev/null`;
  }
}

/** Runs a command as another user, because PostgreSQL refuses to run as root. */
export function asPostgres(place: Place): readonly string[] {
  if (!isRoot()) return [];
  return [place.find("setpriv"), `--reuid=${USER}`, `--regid=${USER}`, "--init-groups", "--"];
}

/** Writes a file that only PostgreSQL's user can read. */
export async function writeForPostgres(place: Place, file: string, text: string): Promise<void> {
  await writeFile(file, text, { mode: 0o600 });
  if (isRoot()) await place.run(["chown", USER, file]);
}

export async function psql(
  place: Place,
  database: string,
  text: string,
  password: string,
): Promise<string> {
  const server = ["-h", place.site.address, "-p", String(place.ports[0]), "-U", USER];
  const plain = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-"];
  const argv = [place.find("psql"), ...server, ...plain, database];
  const env = { PGPASSWORD: password };
  return (await place.run(argv, { input: text, env })).replace(/\n$/, "");
}
