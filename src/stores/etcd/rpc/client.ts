import { setImmediate as turn } from "node:timers/promises";
import { InvalidArgumentError } from "../../../core/errors.js";
import { checkOptions, show } from "../../../core/validate.js";
import { Caller, type CallOptions, closedError } from "./caller.js";
import { Endpoints, type EtcdTls } from "./endpoints.js";
import { Code, EtcdError, isStaleToken, toEtcdError } from "./errors.js";
import {
  callWithin,
  cancelLater,
  type Grpc,
  type GrpcCall,
  type GrpcMetadata,
  loadGrpc,
} from "./grpc.js";
import { KeepAlives } from "./keep-alive.js";
import { Login } from "./login.js";
import {
  type ClusterMember,
  type Header,
  type KeepAliveReply,
  METHODS,
  type MemberStatus,
  type Method,
  type OpReply,
  type Range,
  type RangeReply,
  STATUS,
  type Txn,
  type WatchRange,
} from "./messages.js";
import { type Watch, Watches, type WatchListener } from "./watches.js";

/** Options of `openEtcdClient`. */
export interface EtcdClientOptions {
  /** `host:port` of each member, in any order: the first one to be used is drawn at random. */
  readonly endpoints: readonly string[];
  /** Certificates for TLS; without it, connections are not encrypted. */
  readonly tls?: EtcdTls | undefined;
  /** The user, where the cluster has authentication enabled. */
  readonly user?: string | undefined;
  /** The password of `user`. */
  readonly password?: string | undefined;
  /** Timeout of one call with all its attempts; 5,000 by default. */
  readonly callTimeoutMs?: number | undefined;
  /** Timeout of one attempt, after which the next endpoint is tried; 1,000 by default, and more for a slow server. */
  readonly attemptTimeoutMs?: number | undefined;
  /** Replaces `Math.random`, which draws the first endpoint; for tests. */
  readonly random?: (() => number) | undefined;
}

/**
 * Which member replied, and at which revision. `knownRevision` is the highest revision that this client
 * knew when it sent the request: a lower `revision` shows that the cluster's data went back.
 */
type Headed<T> = T & Header & { knownRevision: bigint };

/** `repeated`: the transaction was sent again, and an attempt before the last may have been executed. */
export type TxnReply = Headed<{ succeeded: boolean; responses: OpReply[]; repeated: boolean }>;

/** The status of an endpoint that replied. */
export type RepliedStatus = MemberStatus & {
  endpoint: string;
  cluster: bigint;
  member: bigint;
  /** The revision of the member's own data; 0 if it does not tell. */
  revision: bigint;
  error?: undefined;
};

export type EndpointStatus = RepliedStatus | { endpoint: string; error: EtcdError };

export const repliedOf = (statuses: readonly EndpointStatus[]): RepliedStatus[] =>
  statuses.filter((one) => one.error === undefined);

/** Calls reject with an `EtcdError`, which says whether they may have been executed. */
export interface EtcdClient {
  /** One atomic step; linearizable, as are its reads. */
  txn(txn: Txn, options?: CallOptions): Promise<TxnReply>;
  /** Reads keys; linearizable unless the range says otherwise. */
  range(range: Range, options?: CallOptions): Promise<Headed<RangeReply>>;
  /** Never repeated: a lease whose reply was lost expires by itself. */
  leaseGrant(
    ttlS: number,
    options?: Pick<CallOptions, "timeoutMs">,
  ): Promise<Header & { id: bigint; ttlS: number }>;
  /** A lease that does not exist is no error. */
  leaseRevoke(id: bigint, options?: CallOptions): Promise<void>;
  /** Renews a lease, once, on the one stream of this client for that. `ttlS` 0: the lease is gone. */
  leaseKeepAlive(
    id: bigint,
    options?: Pick<CallOptions, "timeoutMs">,
  ): Promise<{ ttlS: number; term: bigint; member: bigint }>;
  /** `ttlS` -1: it is gone. */
  leaseTimeToLive(
    id: bigint,
    options?: CallOptions,
  ): Promise<{ ttlS: number; grantedTtlS: number }>;
  /** The keys under the lease; there may be thousands, so each is decoded when it is read. None if it is gone. */
  leaseKeys(id: bigint, options?: CallOptions): Promise<Iterable<string>>;
  /** On the one watch stream of this client. A watch by itself does not keep the process alive. */
  watch(range: WatchRange, listener: WatchListener): Watch;
  /** The status of each endpoint, or the error of one that does not reply. */
  status(): Promise<EndpointStatus[]>;
  /** The members of the cluster, as the endpoint in use knows them. */
  memberList(options?: CallOptions): Promise<ClusterMember[]>;
  /** Ends streams, connections and timers; pending calls reject. */
  close(): Promise<void>;
}

const CALL_MS = 5_000;
const ATTEMPT_MS = 1_000;
const NO_HEADER: Header = { member: 0n, revision: 0n, term: 0n };
const NO_STATUS_HEADER = { cluster: 0n, member: 0n, revision: 0n };

const OPTIONS: readonly (keyof EtcdClientOptions)[] = [
  "endpoints",
  "tls",
  "user",
  "password",
  "callTimeoutMs",
  "attemptTimeoutMs",
  "random",
];

export function checkClient(client: unknown, otherwise = ""): void {
  if (typeof (client as EtcdClient | null | undefined)?.txn === "function") return;
  throw new InvalidArgumentError(
    `the client is ${show(client)}, and not one of openEtcdClient(…); pass one${otherwise}`,
  );
}

/**
 * Opens a client of etcd for `etcdStore`. It loads `@grpc/grpc-js`, and connects with the first call.
 * Throws `InvalidArgumentError` for options that it can't use, `UnsupportedError` without the library.
 *
 * @example
 * const client = await openEtcdClient({ endpoints: ["127.0.0.1:2379"] });
 */
export async function openEtcdClient(options: EtcdClientOptions): Promise<EtcdClient> {
  checkOptions(options, "the options of openEtcdClient", OPTIONS);
  return new RpcClient(await loadGrpc(), options);
}

class RpcClient implements EtcdClient {
  readonly #endpoints: Endpoints;
  readonly #caller: Caller;
  readonly #login: Login;
  readonly #keepAlives: KeepAlives;
  readonly #watches: Watches;
  readonly #noLogin: GrpcMetadata;
  readonly #statusCalls = new Set<GrpcCall>();
  #knownRevision = 0n;
  #closed = false;

  constructor(grpc: Grpc, options: EtcdClientOptions) {
    const { endpoints, tls, user, password = "", random = Math.random } = options;
    this.#endpoints = new Endpoints(grpc, endpoints, tls, random);
    this.#caller = new Caller(this.#endpoints, {
      callMs: options.callTimeoutMs ?? CALL_MS,
      attemptMs: options.attemptTimeoutMs ?? ATTEMPT_MS,
    });
    const nobody = new Login(grpc, null);
    const authenticate = async (name: string): Promise<string> => {
      const request = { name, password };
      const reply = await this.#caller.call(METHODS.authenticate, request, nobody, { again: true });
      return reply.token;
    };
    this.#login = user ? new Login(grpc, () => authenticate(user)) : nobody;
    this.#noLogin = new grpc.Metadata();
    this.#keepAlives = new KeepAlives(this.#caller, this.#login);
    this.#watches = new Watches(this.#caller, this.#login);
    this.#endpoints.onMove = () => {
      this.#keepAlives.moved();
      this.#watches.moved();
    };
  }

  async txn(txn: Txn, options?: CallOptions): Promise<TxnReply> {
    const onlyCompares = (txn.success?.length ?? 0) + (txn.failure?.length ?? 0) === 0;
    const request = onlyCompares ? withRead(txn) : txn;
    const knownRevision = this.#knownRevision;
    let repeated = false;
    const onRepeated = (): void => {
      repeated = true;
    };
    const noticing = { ...options, onRepeated };
    const { header, succeeded, responses } = await this.#call(METHODS.txn, request, noticing);
    const reply = { succeeded, responses: onlyCompares ? [] : responses, repeated };
    return { ...reply, ...this.#note(header), knownRevision };
  }

  async range(range: Range, options?: CallOptions): Promise<Headed<RangeReply>> {
    const knownRevision = this.#knownRevision;
    const reply = await this.#call(METHODS.range, range, { again: true, ...options });
    const { header, kvs, more, count } = reply;
    return { kvs, more, count, ...this.#note(header), knownRevision };
  }

  async leaseGrant(
    ttlS: number,
    options?: Pick<CallOptions, "timeoutMs">,
  ): Promise<Header & { id: bigint; ttlS: number }> {
    const once = { timeoutMs: options?.timeoutMs };
    const { header, id, ttlS: granted } = await this.#call(METHODS.leaseGrant, { ttlS }, once);
    return { id, ttlS: granted, ...this.#note(header) };
  }

  async leaseRevoke(id: bigint, options?: CallOptions): Promise<void> {
    try {
      await this.#call(METHODS.leaseRevoke, { id }, { again: true, ...options });
    } catch (error) {
      if (!(error instanceof EtcdError && error.grpcCode === Code.NOT_FOUND)) throw error;
    }
  }

  async leaseKeepAlive(
    id: bigint,
    options?: Pick<CallOptions, "timeoutMs">,
  ): Promise<{ ttlS: number; term: bigint; member: bigint }> {
    const { timeouts } = this.#caller;
    const attemptMs = this.#endpoints.current.pace.attemptTimeoutMs(timeouts);
    const timeoutMs = Math.min(options?.timeoutMs ?? timeouts.attemptMs, attemptMs);
    const { header, ttlS } = await this.#keepAlive(id, timeoutMs);
    const { member, term } = header ?? NO_HEADER;
    return { ttlS, term, member };
  }

  async leaseTimeToLive(
    id: bigint,
    options?: CallOptions,
  ): Promise<{ ttlS: number; grantedTtlS: number }> {
    const request = { id, keys: false };
    const reply = await this.#call(METHODS.leaseTimeToLive, request, { again: true, ...options });
    return { ttlS: reply.ttlS, grantedTtlS: reply.grantedTtlS };
  }

  async leaseKeys(id: bigint, options?: CallOptions): Promise<Iterable<string>> {
    const request = { id, keys: true };
    return (await this.#call(METHODS.leaseKeys, request, { again: true, ...options })).keys;
  }

  watch(range: WatchRange, listener: WatchListener): Watch {
    if (this.#closed) throw closedError();
    return this.#watches.watch(range, listener);
  }

  status(): Promise<EndpointStatus[]> {
    return Promise.all(this.#endpoints.addresses.map((address, i) => this.#statusOf(address, i)));
  }

  async memberList(options?: CallOptions): Promise<ClusterMember[]> {
    return (await this.#call(METHODS.memberList, {}, { again: true, ...options })).members;
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#caller.close();
    this.#keepAlives.close();
    this.#watches.close();
    for (const call of this.#statusCalls) cancelLater(call);
    // Calls are cancelled in the next turn of the event loop, and have timers until then.
    await turn();
    this.#endpoints.close();
  }

  #note(header: Header = NO_HEADER): Header {
    const { member, revision, term } = header;
    if (revision > this.#knownRevision) this.#knownRevision = revision;
    return { member, revision, term };
  }

  #call<Request extends object, Reply extends object>(
    method: Method<Request, Reply>,
    request: Request,
    options: CallOptions | undefined,
  ): Promise<Reply> {
    return this.#caller.call(method, request, this.#login, options);
  }

  async #keepAlive(id: bigint, timeoutMs: number): Promise<KeepAliveReply> {
    try {
      return await this.#keepAlives.keepAlive(id, timeoutMs);
    } catch (error) {
      const stale = error instanceof EtcdError && isStaleToken(error);
      if (!stale || !this.#login.hasUser) throw error;
      return this.#keepAlives.keepAlive(id, timeoutMs);
    }
  }

  /** Without a login and without retries, so that a member without a leader replies too. */
  #statusOf(endpoint: string, index: number): Promise<EndpointStatus> {
    return new Promise((resolve) => {
      const fail = (error: EtcdError): void => resolve({ endpoint, error });
      if (this.#closed) return fail(closedError());
      const call = callWithin(
        this.#caller.timeouts.attemptMs,
        this.#endpoints.client(index),
        METHODS.status,
        STATUS.encode({}),
        this.#noLogin,
        (failure, reply) => {
          this.#statusCalls.delete(call);
          if (failure !== null) return fail(toEtcdError(endpoint, failure));
          const { header, ...status } = reply!;
          const { cluster, member, revision } = header ?? NO_STATUS_HEADER;
          resolve({ endpoint, ...status, cluster, member, revision });
        },
      );
      this.#statusCalls.add(call);
    });
  }
}

/** Without operations, a member would answer a transaction from its own data, however old that is. */
function withRead(txn: Txn): Txn {
  const key = txn.compare?.[0]?.key;
  if (key === undefined) return txn;
  const read = [{ range: { key, countOnly: true } }];
  return { compare: txn.compare, success: read, failure: read };
}
