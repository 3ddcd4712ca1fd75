import { ChildServer, type Place } from "./child-server.js";
import { until } from "./until.js";

/** Nobody listens there. */
const NO_PORT = 1;
const SYNC_MS = 30_000;
/** Commands that the lab sends, or a server by itself. */
const NOT_OF_CLIENTS = /^(info|ping|config|command|client|hello|replconf|psync|sync|replicaof)\b/;

export interface RedisOptions {
  /** The data that survives a kill: none, all but the last second, or all. */
  readonly persistence?: "none" | "everysec" | "always";
  readonly replicaOf?: RedisServer;
  /** Further settings of redis.conf. */
  readonly config?: Readonly<Record<string, string>>;
}

export class RedisServer extends ChildServer {
  readonly url: string;
  readonly #options: RedisOptions;
  readonly #server: string;
  readonly #cli: string;
  #primary: RedisServer | null;

  constructor(place: Place, options: RedisOptions) {
    super(place);
    this.#options = options;
    this.#primary = options.replicaOf ?? null;
    this.#server = place.find("redis-server");
    this.#cli = place.find("redis-cli");
    this.url = `redis://${this.address}:${this.port}`;
  }

  /** The folder of its snapshot and its append-only file. */
  get dataFolder(): string {
    return this.place.data;
  }

  /** Runs a command by redis-cli, and resolves to its output; rejects if the reply is an error. */
  async cli(...args: readonly string[]): Promise<string> {
    const cli = [this.#cli, "-e", "-h", this.address, "-p", String(this.port)];
    return (await this.place.run([...cli, ...args])).replace(/\r?\n$/, "");
  }

  /** Makes the server a primary, also after a restart. */
  async promote(): Promise<void> {
    await this.cli("replicaof", "no", "one");
    this.#primary = null;
  }

  /** Makes the server a replica of another one, also after a restart. */
  async follow(primary: RedisServer): Promise<void> {
    await this.cli("replicaof", primary.address, String(primary.port));
    this.#primary = primary;
  }

  /** Cuts the replica off from its primary until it follows one again. It stays a replica, with the data it has. */
  async detach(): Promise<void> {
    await this.cli("replicaof", this.address, String(NO_PORT));
  }

  /** Resolves when this replica has everything that its primary has now. */
  async synced(): Promise<void> {
    const primary = this.#primary;
    if (primary === null) throw new Error(`${this.name} is not a replica`);
    const { master_repl_offset: goal } = await primary.#info("replication");
    await until(`${this.name} has caught up`, SYNC_MS, async () => {
      const own = await this.#info("replication");
      // The primary counts the replica as online a little later than the replica itself does.
      const listed = Object.values(await primary.#info("replication"));
      const isOnline = listed.some((line) => line.includes(`port=${this.port},state=online`));
      const isUp = own["master_link_status"] === "up" && isOnline;
      return isUp && Number(own["slave_repl_offset"]) >= Number(goal);
    });
  }

  /** How often each command ran, with those that scripts ran. */
  async calls(): Promise<Map<string, number>> {
    const stats = Object.entries(await this.#info("commandstats"));
    return new Map(
      stats
        .map(([key, value]): [string, number] => [
          key.replace("cmdstat_", ""),
          Number(/calls=(\d+)/.exec(value)?.[1]),
        ])
        .filter(([command]) => !NOT_OF_CLIENTS.test(command)),
    );
  }

  async commands(): Promise<number> {
    return [...(await this.calls()).values()].reduce((sum, count) => sum + count, 0);
  }

  protected command(): readonly string[] {
    const { persistence = "none", config = {} } = this.#options;
    const settings: Record<string, string> = {
      port: String(this.port),
      bind: this.address,
      dir: this.place.data,
      save: "",
      appendonly: persistence === "none" ? "no" : "yes",
      appendfsync: persistence === "always" ? "always" : "everysec",
      "protected-mode": "no",
      // Otherwise a primary waits five seconds for more replicas before it sends its data.
      "repl-diskless-sync-delay": "0",
      ...(this.#primary && { replicaof: `${this.#primary.address} ${this.#primary.port}` }),
      ...config,
    };
    return [
      this.#server,
      ...Object.entries(settings).flatMap(([key, value]) => [`--${key}`, value]),
    ];
  }

  protected async answers(): Promise<boolean> {
    return (await this.cli("ping")) === "PONG";
  }

  async #info(section: string): Promise<Record<string, string>> {
    const lines = (await this.cli("info", section)).split(/\r?\n/);
    return Object.fromEntries(
      lines.filter((line) => line.includes(":")).map((line) => line.split(/:(.*)/s).slice(0, 2)),
    );
  }
}
