import { ChildServer, type Place } from "./child-server.js";
import { until } from "./until.js";

const SYNC_MS = 30_000;
/** Asked by the lab, or by a server of its own accord. */
const NOT_OF_CLIENTS = /^(info|ping|config|command|client|hello|replconf|psync|sync|replicaof)\b/;

export interface RedisOptions {
  /** What outlives a kill: nothing, all but the last second, all. */
  readonly persistence?: "none" | "everysec" | "always";
  readonly replicaOf?: RedisServer;
  /** More of redis.conf. */
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

  /** What redis-cli prints for a command; rejects if the server's answer is an error. */
  async cli(...args: readonly string[]): Promise<string> {
    const cli = [this.#cli, "-e", "-h", this.address, "-p", String(this.port)];
    return (await this.place.run([...cli, ...args])).replace(/\r?\n$/, "");
  }

  /** A primary from now on, also after a restart. */
  async promote(): Promise<void> {
    await this.cli("replicaof", "no", "one");
    this.#primary = null;
  }

  /** A replica of another one from now on, also after a restart. */
  async follow(primary: RedisServer): Promise<void> {
    await this.cli("replicaof", primary.address, String(primary.port));
    this.#primary = primary;
  }

  /** Resolves when this replica has all that its primary has now. */
  async synced(): Promise<void> {
    const primary = this.#primary;
    if (primary === null) throw new Error(`${this.name} is no replica`);
    const { master_repl_offset: goal } = await primary.#info("replication");
    await until(`${this.name} has caught up`, SYNC_MS, async () => {
      const own = await this.#info("replication");
      return own["master_link_status"] === "up" && Number(own["slave_repl_offset"]) >= Number(goal);
    });
  }

  /** Of each command, how often; those that a script runs count too. */
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
