import { setImmediate as turn } from "node:timers/promises";
import { InvalidArgumentError } from "../../../core/errors.js";
import { checkOptions, show } from "../../../core/validate.js";
import { Endpoints, type EtcdTls } from "./endpoints.js";
import { Code, EtcdError, explain, isStaleToken } from "./errors.js";
import { cancelLater, type Grpc, type GrpcCall, loadGrpc } from "./grpc.js";
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
  /** For one attempt, after which the next endpoint is asked; 1 s, and more for a server that is slow. */
  readonly attemptTimeoutMs?: number | undefined;
  readonly random?: (() => number) | undefined;
}

/**
 * Who answered, and when by the cluster's count. `knownRevision` is the highest revision that this
 * client had seen when it asked: a lower `revision` shows that the cluster's data went back.
 */
type Answered<T = object> = T & Header & { knownRevision: bigint };

export type EndpointStatus = { endpoint: string } & (
  | (MemberStatus & { cluster: bigint; member: bigint; error?: undefined })
  | { error: EtcdError }
);

/** Calls reject with an `EtcdError`, which says whether they may have been executed. */
export interface EtcdClient {
  /**
   * One atomic step; linearizable, as are its reads. `repeated`: it was sent again, and may have been
   * executed before the attempt that was answered.
   */
  txn(txn: Txn, options?: CallOptions): Promise<Answered<TxnAnswer> & { repeated: boolean }>;
  range(range: Range, options?: CallOptions): Promise<Answered<RangeAnswer>>;
  /** Never sent twice; one whose answer was lost runs out by itself. */
  leaseGrant(
    ttlS: number,
    options?: Pick<CallOptions, "timeoutMs">,
  ): Promise<Header & { id: bigint; ttlS: number }>;
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

/** Loads the library; connects when something is asked. */
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
  readonly #bare: Login["metadata"];
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

  async txn(txn: Txn, options?: CallOptions): Promise<Answered<TxnAnswer> & { repeated: boolean }> {
    const bare = (txn.success?.length ?? 0) + (txn.failure?.length ?? 0) === 0;
    const asked = bare ? withRead(txn) : txn;
    const knownRevision = this.#knownRevision;
    let repeated = false;
    const onRepeated = (): void => {
      repeated = true;
    };
    const noticing = { ...options, onRepeated };
    const { header, succeeded, responses } = await this.#call(METHODS.txn, asked, noticing);
    const answer = { succeeded, responses: bare ? [] : responses, repeated };
    return { ...answer, ...this.#heard(header), knownRevision };
  }

  async range(range: Range, options?: CallOptions): Promise<Answered<RangeAnswer>> {
    const knownRevision = this.#knownRevision;
    const answer = await this.#call(METHODS.range, range, { again: true, ...options });
    const { header, kvs, more, count } = answer;
    return { kvs, more, count, ...this.#heard(header), knownRevision };
  }

  async leaseGrant(
    ttlS: number,
    options?: Pick<CallOptions, "timeoutMs">,
  ): Promise<Header & { id: bigint; ttlS: number }> {
    const once = { timeoutMs: options?.timeoutMs };
    const { header, id, ttlS: granted } = await this.#call(METHODS.leaseGrant, { ttlS }, once);
    return { id, ttlS: granted, ...this.#heard(header) };
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
    const patienceMs = this.#endpoints.current.pace.patienceMs(timeouts);
    const timeoutMs = Math.min(options?.timeoutMs ?? timeouts.attemptMs, patienceMs);
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
    for (const call of this.#statusCalls) cancelLater(call);
    // Calls that are cancelled in the next turn have timers until then.
    await turn();
    this.#endpoints.close();
  }

  #heard(header: Header = NO_HEADER): Header {
    const { member, revision, term } = header;
    if (revision > this.#knownRevision) this.#knownRevision = revision;
    return { member, revision, term };
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
