import { InvalidArgumentError } from "../../../core/errors.js";
import { show } from "../../../core/validate.js";
import { type Grpc, type GrpcClient, unrefSockets } from "./grpc.js";

export interface EtcdTls {
  readonly ca?: string | Buffer | undefined;
  readonly cert?: string | Buffer | undefined;
  readonly key?: string | Buffer | undefined;
  readonly servername?: string | undefined;
  readonly rejectUnauthorized?: boolean | undefined;
}

/** A member, and the channel to it. */
export interface Endpoint {
  readonly address: string;
  readonly client: GrpcClient;
  readonly pace: Pace;
  /** Counts the changes of the endpoint in use: a failure from before the last change is ignored. */
  readonly generation: number;
}

const SLACK_FACTOR = 1.5;
const HALF_LIFE_MS = 10_000;

/** How slowly an address has replied lately, over all connections to it. */
export class Pace {
  /** When anything was last received from it. */
  receivedAtMs = Number.NEGATIVE_INFINITY;
  #slowestMs = 0;
  #slowestAtMs = 0;

  answered(tookMs: number): void {
    this.receivedAtMs = performance.now();
    this.#learn(tookMs);
  }

  /** The reply would have taken longer than that. */
  timedOut(afterMs: number): void {
    this.#learn(SLACK_FACTOR * afterMs);
  }

  /** The timeout of one attempt. A slow server gets more time: retries would make it slower. */
  attemptTimeoutMs({ attemptMs, callMs }: { attemptMs: number; callMs: number }): number {
    return Math.min(Math.max(attemptMs, SLACK_FACTOR * this.#latelyMs()), callMs);
  }

  /** Fades with time and not with each reply: a server that hangs now and then replies fast in between. */
  #latelyMs(): number {
    return this.#slowestMs * 2 ** ((this.#slowestAtMs - performance.now()) / HALF_LIFE_MS);
  }

  #learn(tookMs: number): void {
    if (tookMs < this.#latelyMs()) return;
    this.#slowestMs = tookMs;
    this.#slowestAtMs = performance.now();
  }
}

const MESSAGE_BYTES = 16 * 1024 * 1024;

const CHANNEL = {
  "grpc.enable_retries": 0,
  "grpc.enable_http_proxy": 0,
  "grpc.enable_channelz": 0,
  "grpc.service_config_disable_resolution": 1,
  // A connection of our own: another client in this process may want its process to live.
  "grpc.use_local_subchannel_pool": 1,
  // A server closes connections that are pinged more often than every 5 s (its --grpc-keepalive-min-time).
  "grpc.keepalive_time_ms": 5_500,
  "grpc.keepalive_timeout_ms": 2_000,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  "grpc.max_receive_message_length": MESSAGE_BYTES,
  "grpc.max_send_message_length": MESSAGE_BYTES,
};

/** The endpoints of a client. One is in use at a time, for calls and streams alike; a failure moves all to the next. */
export class Endpoints {
  readonly addresses: readonly string[];
  /** Called after each change of the endpoint in use. */
  onMove: () => void = () => {};
  readonly #grpc: Grpc;
  readonly #credentials: unknown;
  readonly #options: object;
  readonly #clients: (GrpcClient | undefined)[] = [];
  readonly #paces: readonly Pace[];
  #index: number;
  #current: Endpoint;

  constructor(
    grpc: Grpc,
    addresses: readonly string[],
    tls: EtcdTls | undefined,
    random: () => number,
  ) {
    checkAddresses(addresses);
    this.#grpc = grpc;
    this.addresses = addresses;
    this.#paces = addresses.map(() => new Pace());
    this.#credentials = tls === undefined ? grpc.credentials.createInsecure() : secure(grpc, tls);
    const name = tls?.servername;
    this.#options =
      name === undefined
        ? CHANNEL
        : { ...CHANNEL, "grpc.ssl_target_name_override": name, "grpc.default_authority": name };
    this.#index = Math.floor(random() * addresses.length);
    this.#current = this.#endpoint(0);
  }

  get current(): Endpoint {
    return this.#current;
  }

  /**
   * A request to the endpoint failed. `silentSinceMs`: it was sent then, and got no reply. If nothing
   * else was received since, the connection may be dead, and is replaced, even that of the only
   * endpoint. Otherwise an only endpoint stays in use: retries would load a server that is slow.
   */
  failed({ generation, pace }: Endpoint, silentSinceMs: number | null): void {
    if (generation !== this.#current.generation) return;
    const isDead = silentSinceMs !== null && pace.receivedAtMs < silentSinceMs;
    if (isDead) this.#forget(this.#index);
    else if (this.addresses.length === 1) return;
    this.#index = (this.#index + 1) % this.addresses.length;
    this.#current = this.#endpoint(generation + 1);
    this.onMove();
  }

  /** The channel to one endpoint, whichever is in use. */
  client(index: number): GrpcClient {
    this.#clients[index] ??= new this.#grpc.Client(
      `dns:${this.addresses[index]}`,
      this.#credentials,
      this.#options,
    );
    return this.#clients[index];
  }

  close(): void {
    for (const client of this.#clients) client?.close();
    unrefSockets(this.addresses);
  }

  /** Calls on the old connection go on to their own end. */
  #forget(index: number): void {
    this.#clients[index]?.close();
    this.#clients[index] = undefined;
  }

  #endpoint(generation: number): Endpoint {
    const index = this.#index;
    const [address, pace] = [this.addresses[index]!, this.#paces[index]!];
    return { address, client: this.client(index), pace, generation };
  }
}

const HOST_AND_PORT = /^(?:\[[0-9a-fA-F:.%]+\]|[^\s:/@[\]]+):\d{1,5}$/;

function checkAddresses(addresses: readonly unknown[]): void {
  if (!Array.isArray(addresses) || addresses.length === 0) {
    throw new InvalidArgumentError('endpoints must be a list like ["127.0.0.1:2379"]');
  }
  for (const address of addresses) {
    if (typeof address === "string" && HOST_AND_PORT.test(address)) continue;
    const tls = /^https:/i.test(String(address)) ? "; for https give the option tls" : "";
    throw new InvalidArgumentError(
      `an endpoint is ${show(address)}; it must be host:port, without a scheme${tls}`,
    );
  }
}

function secure(grpc: Grpc, { ca, cert, key, rejectUnauthorized }: EtcdTls): unknown {
  const pem = (text: string | Buffer | undefined): Buffer | null =>
    text === undefined ? null : Buffer.from(text);
  const verify = rejectUnauthorized === undefined ? {} : { rejectUnauthorized };
  return grpc.credentials.createSsl(pem(ca), pem(key), pem(cert), verify);
}
