import { join } from "node:path";
import { ChildServer, type Place } from "./child-server.js";
import { asPostgres, type PostgresServer, psql, writeForPostgres } from "./postgres.js";

export interface PgBouncerOptions {
  /** Further settings of pgbouncer.ini. */
  readonly config?: Readonly<Record<string, string>>;
}

/**
 * A PgBouncer in front of a PostgreSQL server, in transaction mode unless the settings say otherwise: a client's
 * session is not a session of the server.
 */
export class PgBouncer extends ChildServer {
  readonly url: string;
  readonly #postgres: PostgresServer;
  readonly #options: PgBouncerOptions;
  readonly #pgbouncer: string;

  constructor(place: Place, postgres: PostgresServer, options: PgBouncerOptions) {
    super(place);
    this.#postgres = postgres;
    this.#options = options;
    this.#pgbouncer = place.find("pgbouncer");
    this.url = `postgres://postgres:${postgres.password}@${this.address}:${this.port}/postgres`;
  }

  sql(text: string): Promise<string> {
    return psql(this.place, "postgres", text, this.#postgres.password);
  }

  /** How many queries it passed on. */
  async commands(): Promise<number> {
    const databases = (await this.#console("\\x\nSHOW STATS")).split("\n\n");
    return databases
      .filter((stats) => !stats.includes("database|pgbouncer"))
      .reduce((sum, stats) => sum + Number(/^total_query_count\|(\d+)$/m.exec(stats)?.[1]), 0);
  }

  protected override async prepare(): Promise<void> {
    const { address, port, password } = this.#postgres;
    const users = join(this.place.home, "users");
    await writeForPostgres(this.place, users, `"postgres" "${password}"\n`);
    const settings = {
      listen_addr: this.address,
      listen_port: this.port,
      unix_socket_dir: "",
      auth_type: "scram-sha-256",
      auth_file: users,
      admin_users: "postgres",
      pool_mode: "transaction",
      server_login_retry: 0.1,
      ignore_startup_parameters: "extra_float_digits,options",
      ...this.#options.config,
    };
    const lines = [
      "[databases]",
      `* = host=${address} port=${port} user=postgres password=${password}`,
      "[pgbouncer]",
      ...Object.entries(settings).map(([key, value]) => `${key} = ${value}`),
    ];
    await writeForPostgres(this.place, this.#config, `${lines.join("\n")}\n`);
  }

  protected command(): readonly string[] {
    return [...asPostgres(this.place), this.#pgbouncer, this.#config];
  }

  protected async answers(): Promise<boolean> {
    return (await this.#console("SHOW VERSION")) !== "";
  }

  get #config(): string {
    return join(this.place.home, "pgbouncer.ini");
  }

  #console(text: string): Promise<string> {
    return psql(this.place, "pgbouncer", text, this.#postgres.password);
  }
}
