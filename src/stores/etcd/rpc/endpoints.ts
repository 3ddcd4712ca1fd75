import { InvalidArgumentError } from "../../../core/errors.js";
import { show } from "../../../core/validate.js";
import { type Grpc, type GrpcClient, letSocketsGo } from "./grpc.js";

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
  /** Of which turn this is: what failed in an earlier one is old news. */
  readonly turn: number;
}

const MESSAGE_BYTES = 16 * 1024 * 1024;

const CHANNEL = {
  "grpc.enable_retries": 0,
  "grpc.enable_http_proxy": 0,
  "grpc.enable_channelz": 0,
  "grpc.service_config_disable_resolution": 1,
  // A connection of our own: another client in this process may want its process to live.
  "grpc.use_local_subchannel_pool": 1,
  // A server that is asked more often than every 5 s (its --grpc-keepalive-min-time) hangs up.
  "grpc.keepalive_time_ms": 5_500,
  "grpc.keepalive_timeout_ms": 2_000,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  "grpc.max_receive_message_length": MESSAGE_BYTES,
  "grpc.max_send_message_length": MESSAGE_BYTES,
};

/** One of them is in use at a time, for calls and streams alike; whoever sees it fail moves all to the next. */
export class Endpoints {
  readonly addresses: readonly string[];
  /** Called after each move. */
  onMove: () => void = () => {};
  readonly #grpc: Grpc;
  readonly #credentials: unknown;
  readonly #options: object;
  readonly #clients: (GrpcClient | undefined)[] = [];
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
   * The caller saw it fail. One that took a request and was silent may be behind a dead connection:
   * it gets a new one, also if it is the only one. Otherwise that has nowhere to go.
   */
  failed({ turn }: Endpoint, silent: boolean): void {
    if (turn !== this.#current.turn) return;
    if (silent) this.#forget(this.#index);
    else if (this.addresses.length === 1) return;
    this.#index = (this.#index + 1) % this.addresses.length;
    this.#current = this.#endpoint(turn + 1);
    this.onMove();
  }

  /** The channel to one of them, whichever is in use. */
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
    letSocketsGo(this.addresses);
  }

  /** What is under way on it goes on to its own end. */
  #forget(index: number): void {
    this.#clients[index]?.close();
    this.#clients[index] = undefined;
  }

  #endpoint(turn: number): Endpoint {
    return { address: this.addresses[this.#index]!, client: this.client(this.#index), turn };
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
