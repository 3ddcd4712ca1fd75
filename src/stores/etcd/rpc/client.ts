import { Endpoints, type EtcdTls } from "./endpoints.js";
import { Code, EtcdError, explain, isStaleToken } from "./errors.js";
import { type Grpc, type GrpcCall, loadGrpc } from "./grpc.js";
import { KeepAlives } from "./keep-alive.js";
import { Login } from "./login.js";
import {
  type ClusterMember,
  type Header,
  type KeepAliveAnswer,
  METHODS,
  type MemberStatus,
  type Method,
  type Range,
  type RangeAnswer,
  STATUS,
  type Txn,
  type TxnAnswer,
  type WatchRange,
} from "./messages.js";
import { Caller, type CallOptions, closedError } from "./unary.js";
import { type Watch, Watches, type WatchHearing } from "./watches.js";

export interface EtcdClientOptions {
  /** `host:port`, in any order: the first to be used is drawn. */
  readonly endpoints: readonly string[];
  readonly tls?: EtcdTls | undefined;
  readonly user?: string | undefined;
  readonly password?: string | undefined;
  /** For one call with all its attempts; 5 s. */
  readonly callTimeoutMs?: number | undefined;
  /** For one attempt, after which the next endpoint is asked; 1 s. */
  readonly attemptTimeoutMs?: number | undefined;
  readonly random?: (() => number) | undefined;
}

/** Who answered, and when by the cluster's count. */
type Answered<T = object> = T & Header;

export type EndpointStatus = { endpoint: string } & (
  | (MemberStatus & { cluster: bigint; member: bigint; error?: undefined })
  | { error: EtcdError }
);

/** Calls reject with an `EtcdError`, which says whether they may have been executed. */
export interface EtcdClient {
  /** One atomic step; linearizable, as are its reads. */
  txn(txn: Txn, options?: CallOptions): Promise<Answered<TxnAnswer>>;
  range(range: Range, options?: CallOptions): Promise<Answered<RangeAnswer>>;
  /** Never sent twice; one whose answer was lost runs out by itself. */
  leaseGrant(
    ttlS: number,
    options?: Pick<CallOptions, "timeoutMs">,
  ): Promise<Answered<{ id: bigint; ttlS: number }>>;
  /** A lease that is not there is no error. */
  leaseRevoke(id: bigint, options?: CallOptions): Promise<void>;
  /** On the one stream of this client, and sent once. `ttlS` 0: it is gone. */
  leaseKeepAlive(
    id: bigint,
    options?: Pick<CallOptions, "timeoutMs">,
  ): Promise<{ ttlS: number; term: bigint; member: bigint }>;
  /** `ttlS` -1: it is gone. */
  leaseTimeToLive(
    id: bigint,
    options?: CallOptions,
  ): Promise<{ ttlS: number; grantedTtlS: number }>;
  /** What stands under it; there may be thousands, and each is read when it is asked for. Nothing if it is gone. */
  leaseKeys(id: bigint, options?: CallOptions): Promise<Iterable<string>>;
  /** On the one watch stream of this client. A watch by itself does not keep the process alive. */
  watch(range: WatchRange, hear: WatchHearing): Watch;
  /** Of each endpoint; of one that does not answer, its error. */
  status(): Promise<EndpointStatus[]>;
  /** Of the cluster, as the endpoint in use knows it. */
  memberList(options?: CallOptions): Promise<ClusterMember[]>;
  /** Ends streams, connections and timers; what is pending rejects. */
  close(): Promise<void>;
}

const CALL_MS = 5_000;
const ATTEMPT_MS = 1_000;
const NO_HEADER: Header = { member: 0n, revision: 0n, term: 0n };

/** Loads the library; connects when something is asked. */
export async function openEtcdClient(options: EtcdClientOptions): Promise<EtcdClient> {
  return new RpcClient(await loadGrpc(), options);
}

class RpcClient implements EtcdClient {
  readonly #endpoints: Endpoints;
  readonly #caller: Caller;
  readonly #login: Login;
  readonly #keepAlives: KeepAlives;
  readonly #watches: Watches;
  readonly #bare: Login["metadata"];
  readonly #statusCalls = new Set<GrpcCall>();
  #closed = false;

  constructor(grpc: Grpc, options: EtcdClientOptions) {
    const { endpoints, tls, user, password = "", random = Math.random } = options;
    this.#endpoints = new Endpoints(grpc, endpoints, tls, random);
    this.#caller = new Caller(this.#endpoints, {
      callMs: options.callTimeoutMs ?? CALL_MS,
      attemptMs: options.attemptTimeoutMs ?? ATTEMPT_MS,
    });
    const nobody = new Login(grpc);
    this.#login =
      user === undefined || user === ""
        ? nobody
        : new Login(grpc, {
            name: user,
            password,
            authenticate: async (name, secret) => {
              const request = { name, password: secret };
              const again = { again: true };
              return (await this.#caller.call(METHODS.authenticate, request, nobody, again)).token;
            },
          });
    this.#bare = new grpc.Metadata();
    this.#keepAlives = new KeepAlives(this.#caller, this.#login);
    this.#watches = new Watches(this.#caller, this.#login);
    this.#endpoints.onMove = () => {
      this.#keepAlives.moved();
      this.#watches.moved();
    };
  }

  async txn(txn: Txn, options?: CallOptions): Promise<Answered<TxnAnswer>> {
    const bare = (txn.success?.length ?? 0) + (txn.failure?.length ?? 0) === 0;
    const asked = bare ? withRead(txn) : txn;
    const { header, succeeded, responses } = await this.#call(METHODS.txn, asked, options);
    const { member, revision, term } = header ?? NO_HEADER;
    return { succeeded, responses: bare ? [] : responses, member, revision, term };
  }

  async range(range: Range, options?: CallOptions): Promise<Answered<RangeAnswer>> {
    const answer = await this.#call(METHODS.range, range, { again: true, ...options });
    const { header, kvs, more, count } = answer;
    const { member, revision, term } = header ?? NO_HEADER;
    return { kvs, more, count, member, revision, term };
  }

  async leaseGrant(
    ttlS: number,
    options?: Pick<CallOptions, "timeoutMs">,
  ): Promise<Answered<{ id: bigint; ttlS: number }>> {
    const once = { timeoutMs: options?.timeoutMs };
    const answer = await this.#call(METHODS.leaseGrant, { ttlS }, once);
    const { member, revision, term } = answer.header ?? NO_HEADER;
    return { id: answer.id, ttlS: answer.ttlS, member, revision, term };
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
    const timeoutMs = options?.timeoutMs ?? this.#caller.timeouts.attemptMs;
    const { header, ttlS } = await this.#keepAlive(id, timeoutMs);
    const { member, term } = header ?? NO_HEADER;
    return { ttlS, term, member };
  }

  async leaseTimeToLive(
    id: bigint,
    options?: CallOptions,
  ): Promise<{ ttlS: number; grantedTtlS: number }> {
    const request = { id, keys: false };
    const answer = await this.#call(METHODS.leaseTimeToLive, request, { again: true, ...options });
    return { ttlS: answer.ttlS, grantedTtlS: answer.grantedTtlS };
  }

  async leaseKeys(id: bigint, options?: CallOptions): Promise<Iterable<string>> {
    const request = { id, keys: true };
    return (await this.#call(METHODS.leaseKeys, request, { again: true, ...options })).keys;
  }

  watch(range: WatchRange, hear: WatchHearing): Watch {
    if (this.#closed) throw closedError();
    return this.#watches.watch(range, hear);
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
    for (const call of this.#statusCalls) call.cancel();
    this.#endpoints.close();
  }

  #call<Request extends object, Answer extends object>(
    method: Method<Request, Answer>,
    request: Request,
    options: CallOptions | undefined,
  ): Promise<Answer> {
    return this.#caller.call(method, request, this.#login, options);
  }

  async #keepAlive(id: bigint, timeoutMs: number): Promise<KeepAliveAnswer> {
    try {
      return await this.#keepAlives.keepAlive(id, timeoutMs);
    } catch (error) {
      const stale = error instanceof EtcdError && isStaleToken(error);
      if (!stale || !this.#login.hasUser) throw error;
      return this.#keepAlives.keepAlive(id, timeoutMs);
    }
  }

  /** By itself, and also of a member without a leader. */
  #statusOf(endpoint: string, index: number): Promise<EndpointStatus> {
    return new Promise((resolve) => {
      const fail = (error: EtcdError): void => resolve({ endpoint, error });
      if (this.#closed) return fail(closedError());
      const { path, decode } = METHODS.status;
      const call = this.#endpoints.client(index).makeUnaryRequest(
        path,
        (bytes) => bytes,
        decode,
        STATUS.encode({}),
        this.#bare!,
        { deadline: Date.now() + this.#caller.timeouts.attemptMs },
        (failure, answer) => {
          this.#statusCalls.delete(call);
          if (failure !== null) return fail(explain(endpoint, failure));
          const { header, ...status } = answer!;
          const { cluster, member } = header ?? { cluster: 0n, member: 0n };
          resolve({ endpoint, ...status, cluster, member });
        },
      );
      this.#statusCalls.add(call);
    });
  }
}

/** A transaction without operations is answered by a member from what it has, however old that is. */
function withRead(txn: Txn): Txn {
  const key = txn.compare?.[0]?.key;
  if (key === undefined) return txn;
  const read = [{ range: { key, countOnly: true } }];
  return { compare: txn.compare, success: read, failure: read };
}
