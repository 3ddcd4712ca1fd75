import { mkdir, writeFile } from "node:fs/promises";
import { delimiter, dirname, join } from "node:path";
import { ChildServer, type Place } from "./child-server.js";
import { talk } from "./talk.js";

export interface ZooKeeperOptions {
  /** `fast`: a tick of 200 ms, so sessions may be as short as 400 ms. */
  readonly timing?: "fast" | "default";
  /** How often empty containers are removed; by default every minute. */
  readonly containerCheckMs?: number;
  /** Further settings of `zoo.cfg`. */
  readonly config?: Readonly<Record<string, string>>;
}

const JAVA = ["-Xms16m", "-Xmx48m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
/** Otherwise the JVM leaves a file in /tmp when it is killed. */
const NO_TRACES = "-XX:-UsePerfData";
/** Needed for TLS, and missing in the class path of Debian's zookeeper.jar. */
const TLS_JAR = "netty-codec.jar";
const MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

export class ZooKeeperServer extends ChildServer {
  readonly url: string;
  #options: ZooKeeperOptions;
  readonly #ensemble: readonly Place[];
  readonly #java: string;
  readonly #jar: string;

  constructor(place: Place, ensemble: readonly Place[], options: ZooKeeperOptions) {
    super(place);
    this.#options = options;
    this.#ensemble = ensemble;
    this.#java = place.find("java");
    this.#jar = place.find("zookeeper.jar");
    this.url = `zookeeper://${this.address}:${this.port}`;
  }

  /** Sends one of the four-letter commands, and resolves to the reply. */
  ask(word: string): Promise<string> {
    return talk(this.place, word);
  }

  async leads(): Promise<bigint | null> {
    const answer = await this.ask("srvr");
    if (!/^Mode: (leader|standalone)$/m.test(answer)) return null;
    const zxid = /^Zxid: (0x[0-9a-f]+)$/m.exec(answer)?.[1] ?? "0";
    return BigInt(zxid) >> 32n;
  }

  /** Restarts it with its data and other settings of `zoo.cfg`. */
  async restartWith(config: Readonly<Record<string, string>>): Promise<void> {
    await this.kill();
    this.#options = { ...this.#options, config };
    await this.#writeConfig();
    await this.start();
  }

  /** How many reads and updates clients sent to this server, without pings. */
  commands(): Promise<number> {
    return this.#sum(/^zk_cnt_(?:read|update)latency\t(\d+)$/gm);
  }

  /** How many packets clients sent and got: requests, replies, events and pings. */
  packets(): Promise<number> {
    return this.#sum(/^zk_packets_(?:received|sent)\t(\d+)$/gm);
  }

  protected override async prepare(): Promise<void> {
    await mkdir(this.place.data, { recursive: true });
    const id = this.#ensemble.indexOf(this.place) + 1;
    await writeFile(join(this.place.data, "myid"), `${id}\n`);
    await this.#writeConfig();
  }

  protected command(): readonly string[] {
    const classPath = [this.#jar, join(dirname(this.#jar), TLS_JAR)].join(delimiter);
    const { containerCheckMs } = this.#options;
    const checks =
      containerCheckMs === undefined
        ? []
        : [`-Dznode.container.checkIntervalMs=${containerCheckMs}`];
    return [this.#java, ...JAVA, NO_TRACES, ...checks, "-cp", classPath, MAIN, this.#config];
  }

  protected async answers(): Promise<boolean> {
    return (await this.ask("srvr")).includes("Mode: ");
  }

  async #sum(counters: RegExp): Promise<number> {
    const answer = await this.ask("mntr");
    return [...answer.matchAll(counters)].reduce((sum, [, count]) => sum + Number(count), 0);
  }

  #writeConfig(): Promise<void> {
    return writeFile(this.#config, `${this.#settings().join("\n")}\n`);
  }

  get #config(): string {
    return join(this.place.home, "zoo.cfg");
  }

  #settings(): readonly string[] {
    const fast = this.#options.timing !== "default";
    return [
      `dataDir=${this.place.data}`,
      "admin.enableServer=false",
      "4lw.commands.whitelist=*",
      "initLimit=25",
      "syncLimit=10",
      ...(fast ? ["tickTime=200", "minSessionTimeout=400"] : ["tickTime=2000"]),
      ...(this.#ensemble.length === 1
        ? [`clientPort=${this.port}`, `clientPortAddress=${this.address}`]
        : ["standaloneEnabled=false", ...this.#ensemble.map(memberLine)]),
      ...Object.entries(this.#options.config ?? {}).map(([name, value]) => `${name}=${value}`),
    ];
  }
}

function memberLine({ site: { address }, ports }: Place, index: number): string {
  const [client, quorum, election] = ports;
  return `server.${index + 1}=${address}:${quorum}:${election};${address}:${client}`;
}
