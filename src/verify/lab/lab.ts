import { chmodSync, mkdtempSync, realpathSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { UnsupportedError } from "../../core/errors.js";
import type { ChildServer, Place } from "./child-server.js";
import { ServerCluster } from "./cluster.js";
import { type EtcdOptions, EtcdServer } from "./etcd.js";
import { Guardian } from "./guardian.js";
import { PgBouncer, type PgBouncerOptions } from "./pgbouncer.js";
import { freePort, isFree } from "./ports.js";
import { type PostgresOptions, PostgresServer } from "./postgres.js";
import { type RedisOptions, RedisServer } from "./redis.js";
import { type Find, findProgram } from "./requirements.js";
import { plainEnv, run } from "./run.js";
import { LOOPBACK, type Site } from "./server.js";
import { until } from "./until.js";
import { type ZooKeeperOptions, ZooKeeperServer } from "./zookeeper.js";

const PORT_TRIES = 5;
const END_MS = 10_000;

export interface LabOptions {
  /** Finds the path of a program, a library or a jar; null if it is not there. */
  readonly find?: Find;
  readonly freePort?: () => Promise<number>;
}

export interface Sited {
  readonly site?: Site | undefined;
}

export interface Nodes {
  readonly nodes?: 1 | 3;
  /** The site of each node. */
  readonly sites?: readonly Site[] | undefined;
}

/** Real servers in a temporary folder. None of them outlives the lab, however its process ends. */
export class Lab implements AsyncDisposable {
  /** The lab's folder. A process whose working directory is in it ends with the lab. Folders of sites are in it. */
  readonly folder: string;
  readonly #guardian: Guardian;
  readonly #find: Find | undefined;
  readonly #freePort: () => Promise<number>;
  readonly #servers = new Set<ChildServer>();
  readonly #counts = new Map<string, number>();
  #closing: Promise<void> | null = null;

  private constructor(options: LabOptions) {
    this.#find = options.find;
    this.#freePort = options.freePort ?? freePort;
    this.folder = realpathSync(mkdtempSync(join(tmpdir(), "holdfast-lab-")));
    this.#guardian = new Guardian(this.folder);
    // PostgreSQL runs as another user, who must be able to enter the folder.
    chmodSync(this.folder, 0o711);
  }

  /** Makes an empty lab in a fresh temporary folder. Throws `UnsupportedError` on another system than Linux. */
  static async open(options: LabOptions = {}): Promise<Lab> {
    if (process.platform !== "linux") {
      throw new UnsupportedError(
        "the lab needs Linux, because it finds its processes by /proc; holdfast verify --store URL works without a lab",
      );
    }
    return new Lab(options);
  }

  /** Starts a Redis server; resolves when it replies. */
  redis({ site, ...options }: RedisOptions & Sited = {}): Promise<RedisServer> {
    return this.#launchOne("redis", site, (place) => new RedisServer(place, options));
  }

  /** Starts independent Redis servers, as a quorum needs them. */
  redisNodes(
    count: number,
    { sites, ...options }: RedisOptions & Pick<Nodes, "sites"> = {},
  ): Promise<RedisServer[]> {
    return Promise.all(
      Array.from({ length: count }, (_, i) => this.redis({ ...options, site: sites?.[i] })),
    );
  }

  /** Starts a PostgreSQL server; resolves when it replies. */
  postgres({ site, ...options }: PostgresOptions & Sited = {}): Promise<PostgresServer> {
    return this.#launchOne("postgres", site, (place) => new PostgresServer(place, options));
  }

  /** Starts a PgBouncer in front of a PostgreSQL server. */
  pgbouncer(
    postgres: PostgresServer,
    { site, ...options }: PgBouncerOptions & Sited = {},
  ): Promise<PgBouncer> {
    return this.#launchOne("pgbouncer", site, (place) => new PgBouncer(place, postgres, options));
  }

  /** Starts an etcd cluster of one member or three; resolves when it has a leader. */
  async etcd({
    nodes = 1,
    sites,
    ...options
  }: EtcdOptions & Nodes = {}): Promise<ServerCluster<EtcdServer>> {
    const servers = await this.#launch("etcd", spread(nodes, sites), 2, (places) =>
      EtcdServer.cluster(places, options),
    );
    return new ServerCluster("etcd", servers);
  }

  /** Starts a ZooKeeper ensemble of one server or three; resolves when it replies. */
  async zookeeper({
    nodes = 1,
    sites,
    ...options
  }: ZooKeeperOptions & Nodes = {}): Promise<ServerCluster<ZooKeeperServer>> {
    const servers = await this.#launch("zookeeper", spread(nodes, sites), 3, (places) =>
      places.map((place) => new ZooKeeperServer(place, places, options)),
    );
    return new ServerCluster("zookeeper", servers);
  }

  /**
   * Registers a shell command that runs when the lab ends, however it ends: after the processes are
   * killed, the newest command first. Register it before you make the thing that it undoes, and
   * call the returned function once that is undone.
   */
  onEnd(command: string): () => void {
    this.#checkOpen();
    return this.#guardian.register(command);
  }

  /** Ends all servers and removes the folder. */
  close(): Promise<void> {
    this.#closing ??= this.#guardian
      .finish()
      .finally(() =>
        until("the servers are gone", END_MS, () =>
          [...this.#servers].every(({ state }) => state === "down"),
        ),
      );
    return this.#closing;
  }

  /** The same as `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #launchOne<S extends ChildServer>(
    kind: string,
    site: Site | undefined,
    make: (place: Place) => S,
  ): Promise<S> {
    const [server] = await this.#launch(kind, [site], 1, ([place]) => [make(place!)]);
    return server!;
  }

  /** Starts servers together; tries again on other ports if another process takes one of theirs. */
  async #launch<S extends ChildServer>(
    kind: string,
    sites: readonly (Site | undefined)[],
    portsEach: number,
    make: (places: readonly Place[]) => readonly S[],
  ): Promise<readonly S[]> {
    const names = sites.map(() => this.#name(kind));
    for (let attempt = 1; ; attempt++) {
      const places: Place[] = [];
      for (const [i, site] of sites.entries()) {
        places.push(await this.#place(names[i]!, site ?? LOOPBACK, portsEach));
      }
      const servers = make(places);
      for (const server of servers) this.#servers.add(server);
      const starts = servers.map((server) => server.start());
      try {
        await Promise.all(starts);
        return servers;
      } catch (error) {
        await Promise.allSettled(servers.map((server) => server.kill()));
        await Promise.allSettled(starts);
        if (this.#closing !== null || attempt === PORT_TRIES) throw error;
        const free = await Promise.all(places.flatMap(({ ports }) => ports.map(isFree)));
        if (!free.includes(false)) throw error;
        for (const { home, data } of places) {
          for (const folder of [home, data]) await rm(folder, { recursive: true, force: true });
        }
      }
    }
  }

  #name(kind: string): string {
    const count = (this.#counts.get(kind) ?? 0) + 1;
    this.#counts.set(kind, count);
    return `${kind}-${count}`;
  }

  async #place(name: string, site: Site, portsEach: number): Promise<Place> {
    if (site.folder !== undefined && !site.folder.startsWith(`${this.folder}/`)) {
      throw new Error(
        `${site.folder} is not in the lab's folder ${this.folder}, so it would be left behind`,
      );
    }
    const home = join(this.folder, name);
    const ports: number[] = [];
    for (let i = 0; i < portsEach; i++) ports.push(await this.#freePort());
    return {
      name,
      site,
      ports,
      home,
      data: join(site.folder ?? home, site.folder === undefined ? "data" : name),
      find: (file) => findProgram(file, this.#find),
      onEnd: (command) => this.onEnd(command),
      run: (argv, options) => {
        this.#checkOpen();
        const env = { ...plainEnv(this.folder), ...options?.env };
        return run(site.command(argv), { ...options, env, cwd: this.folder });
      },
      checkOpen: () => this.#checkOpen(),
    };
  }

  #checkOpen(): void {
    if (this.#closing !== null) throw new Error("the lab is closed");
  }
}

const spread = (nodes: number, sites: readonly Site[] = []): (Site | undefined)[] =>
  Array.from({ length: nodes }, (_, i) => sites[i]);
