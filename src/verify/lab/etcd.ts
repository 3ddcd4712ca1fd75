import { rm } from "node:fs/promises";
import { ChildServer, type Place } from "./child-server.js";
import { talk } from "./talk.js";
import { until } from "./until.js";

export interface EtcdOptions {
  /** `fast`: elections in a fifth of the time; a ttl below the election's timeout is raised. */
  readonly timing?: "fast" | "default";
  /** Further flags of etcd, without the dashes. */
  readonly flags?: Readonly<Record<string, string>>;
  /** A second port for clients, with TLS. The lab uses the plain port. */
  readonly tls?: EtcdTls;
}

/** Paths of files in PEM. */
interface EtcdTls {
  readonly port: number;
  readonly cert: string;
  readonly key: string;
  /** The CA of client certificates, which clients then must present. */
  readonly clientCa?: string;
}

const ELECTION_MS = 30_000;
const FAST = ["--heartbeat-interval", "20", "--election-timeout", "200"];

export class EtcdServer extends ChildServer {
  readonly url: string;
  readonly #options: EtcdOptions;
  readonly #members: readonly EtcdServer[];
  readonly #etcd: string;
  readonly #etcdctl: string;
  #joins = "new";

  private constructor(place: Place, members: readonly EtcdServer[], options: EtcdOptions) {
    super(place);
    this.#members = members;
    this.#options = options;
    this.#etcd = place.find("etcd");
    this.#etcdctl = place.find("etcdctl");
    this.url = `etcd://${this.address}:${this.port}`;
  }

  static cluster(places: readonly Place[], options: EtcdOptions): readonly EtcdServer[] {
    const members: EtcdServer[] = [];
    for (const place of places) members.push(new EtcdServer(place, members, options));
    return members;
  }

  /** Runs etcdctl against this member, and resolves to its output. */
  ctl(...args: readonly string[]): Promise<string> {
    const limits = ["--dial-timeout=2s", "--command-timeout=2s"];
    const argv = [this.#etcdctl, `--endpoints=${this.#clientUrl}`, ...limits, ...args];
    return this.place.run(argv, { env: { ETCDCTL_API: "3" } });
  }

  async leads(): Promise<bigint | null> {
    const status = await this.#status();
    return status("Leader") === status("MemberID") ? status("RaftTerm") : null;
  }

  /** A member without its data can't return as itself: it is removed, and joins as a new member. */
  override async wipe(): Promise<void> {
    await this.kill();
    if (this.#members.length > 1) {
      const other = this.#members.find((one) => one !== this && one.state === "running");
      if (other === undefined)
        throw new Error(`${this.name} can't join again: no other member is there`);
      await until(`${other.name} has a leader`, ELECTION_MS, () => other.answers());
      const member = new RegExp(`^(\\w+), \\w+, ${this.name},`, "m").exec(
        await other.ctl("member", "list"),
      );
      if (member !== null) await other.ctl("member", "remove", member[1]!);
      await other.ctl("member", "add", this.name, `--peer-urls=${this.#peerUrl}`);
      this.#joins = "existing";
    }
    await super.wipe();
  }

  /** Starts again, alone, with the data of `ctl("snapshot", "save", file)`. */
  async restore(file: string): Promise<void> {
    if (this.#members.length > 1)
      throw new Error(`${this.name} has other members: restore needs a cluster of one`);
    await this.kill();
    await rm(this.place.data, { recursive: true, force: true });
    const names = ["--name", this.name, "--initial-cluster", `${this.name}=${this.#peerUrl}`];
    const where = ["--initial-advertise-peer-urls", this.#peerUrl, "--data-dir", this.place.data];
    const argv = [this.#etcdctl, "snapshot", "restore", file, ...names, ...where];
    await this.place.run(argv, { env: { ETCDCTL_API: "3" } });
    await this.start();
  }

  /**
   * Raises the alarm of a used-up quota: every member refuses writes that take space until it is
   * disarmed. Raised by hand, because filling a quota takes longer than a fault lasts.
   */
  async raiseNoSpace(): Promise<void> {
    const memberID = String((await this.#status())("MemberID"));
    const body = JSON.stringify({ action: "ACTIVATE", memberID, alarm: "NOSPACE" });
    const head = `POST /v3/maintenance/alarm HTTP/1.0\r\nContent-Length: ${body.length}\r\n\r\n`;
    const answer = await talk(this.place, `${head}${body}`);
    if (!answer.includes("NOSPACE")) throw new Error(`${this.name} raised no alarm: ${answer}`);
  }

  /** How many gRPC messages clients sent: requests, and messages on streams. */
  async commands(): Promise<number> {
    const metrics = await this.#get("/metrics");
    return [...metrics.matchAll(/^grpc_server_msg_received_total\{(.*)\} (\S+)$/gm)]
      .filter(([, labels]) => !labels!.includes("Maintenance"))
      .reduce((sum, [, , count]) => sum + Number(count), 0);
  }

  protected command(): readonly string[] {
    const cluster = this.#members.map((one) => `${one.name}=${one.#peerUrl}`).join(",");
    return [
      this.#etcd,
      ...["--name", this.name, "--data-dir", this.place.data],
      ...["--listen-client-urls", this.#clientUrls, "--advertise-client-urls", this.#clientUrl],
      ...["--listen-peer-urls", this.#peerUrl, "--initial-advertise-peer-urls", this.#peerUrl],
      ...["--initial-cluster", cluster, "--initial-cluster-state", this.#joins],
      // Otherwise no member can join for five seconds after a restart.
      "--strict-reconfig-check=false",
      ...["--logger", "zap", "--log-level", "warn"],
      ...(this.#options.timing === "default" ? [] : FAST),
      ...this.#tlsFlags(),
      ...Object.entries(this.#options.flags ?? {}).map(([flag, value]) => `--${flag}=${value}`),
    ];
  }

  #tlsFlags(): readonly string[] {
    const { tls } = this.#options;
    if (tls === undefined) return [];
    const { cert, key, clientCa } = tls;
    return [
      ...["--cert-file", cert, "--key-file", key],
      ...(clientCa === undefined ? [] : ["--trusted-ca-file", clientCa, "--client-cert-auth"]),
    ];
  }

  /** The member replies after a read that needs the leader and a majority. */
  protected async answers(): Promise<boolean> {
    return (await this.#get("/health")).includes('"health":"true"');
  }

  get #clientUrls(): string {
    const { tls } = this.#options;
    return tls === undefined
      ? this.#clientUrl
      : `${this.#clientUrl},https://${this.address}:${tls.port}`;
  }

  get #clientUrl(): string {
    return `http://${this.address}:${this.port}`;
  }

  get #peerUrl(): string {
    return `http://${this.address}:${this.place.ports[1]}`;
  }

  #get(path: string): Promise<string> {
    return talk(this.place, `GET ${path} HTTP/1.0\r\n\r\n`);
  }

  /** The member's status, in numbers of 64 bits. */
  async #status(): Promise<(field: string) => bigint> {
    const text = await this.ctl("endpoint", "status", "--write-out=fields");
    return (field) => BigInt(new RegExp(`"${field}" : (\\d+)`).exec(text)?.[1] ?? 0);
  }
}
