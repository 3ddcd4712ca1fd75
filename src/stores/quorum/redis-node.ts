import { randomUUID } from "node:crypto";
import { reasonOf } from "../../core/cause.js";
import { HoldfastError, InvalidArgumentError } from "../../core/errors.js";
import { show } from "../../core/validate.js";
import { connectionOf, type RedisClient } from "../redis/client.js";
import { pairsOf } from "../redis/connection.js";
import { RequestBatcher } from "../redis/request-batcher.js";
import { ScriptRunner } from "../redis/script-runner.js";
import { type Json, listOf } from "../shared/json-replies.js";
import { Listener } from "../shared/listener.js";
import { slices } from "../shared/slices.js";
import { sameServer } from "./errors.js";
import { counterOf, MARKER, nameOfRecord, PREFIX, patternOf, recordOf, revokedOf } from "./keys.js";
import type {
  NodeClaim,
  NodeClaimReply,
  NodeEvents,
  NodeNameInfo,
  NodeRelease,
  NodeReleaseReply,
  NodeRenewal,
  NodeRenewReply,
  NodeRevocation,
  NodeState,
  QuorumNode,
} from "./node.js";
import {
  type EncodedRequest,
  encodeClaim,
  encodePass,
  encodeRaise,
  encodeRelease,
} from "./requests.js";
import { SCRIPTS } from "./scripts.js";

const NAMES_PER_SCRIPT = 100;

const WORDS = { prefix: PREFIX, page: "docs/stores/quorum.md", maker: "quorumStore" };
/** The settings of a server that has each write on its disk before it replies. */
const DURABLE = { appendonly: "yes", appendfsync: "always", "no-appendfsync-on-rewrite": "no" };

/** A server that has just restarted may get its users a moment later. */
const LOGIN_REFUSED = /NOAUTH|WRONGPASS/;

/** The script could not examine the server, which may be another one than before: a proxy can keep the connection. */
const NOT_EXAMINED = /HOLDFAST RESTARTED|READONLY|MISCONF|OOM/;

/** A node that is one Redis server. */
export class RedisNode implements QuorumNode {
  readonly where: string;
  readonly #runner: ScriptRunner;
  readonly #requests: RequestBatcher;
  readonly #maxTtlMs: number;
  readonly #closeClient: boolean;
  readonly #channel = `${PREFIX}wake:${randomUUID()}`;
  /** The marker that the node last sent, in service or not. */
  #marker = "";
  /** With the marker while the node is in service; without one, the node has to examine itself. */
  #usualCaller: readonly string[];
  /** The run ids of the servers behind the nodes of this quorum, as far as they differ. */
  readonly #servers: Map<RedisNode, string>;
  /** The losses of the connection when the server was examined: after another loss, another server may answer. */
  #examinedAt = -1;
  #examination: Promise<void> | null = null;
  #listener: Listener | null = null;

  /** `servers`: the same map for all nodes of a quorum. */
  constructor(
    client: RedisClient,
    options: { maxTtlMs: number; closeClient: boolean; servers?: Map<RedisNode, string> },
  ) {
    const connection = connectionOf(client, "quorumStore");
    if (connection.cluster) {
      throw new InvalidArgumentError(
        "a node of a quorum is a single Redis server; for a Redis Cluster use redisStore()",
      );
    }
    // The scripts find the keys of the node by the first place where it stands.
    if (connection.keyPrefix.includes(PREFIX)) {
      throw new InvalidArgumentError(
        `the keyPrefix of the client is ${show(connection.keyPrefix)}; it must not contain ${show(PREFIX)}, with which the keys of a quorum begin`,
      );
    }
    this.where = connection.where;
    this.#runner = new ScriptRunner(connection, WORDS);
    this.#maxTtlMs = options.maxTtlMs;
    this.#closeClient = options.closeClient;
    this.#servers = options.servers ?? new Map();
    this.#usualCaller = this.#caller("", "unread");
    this.#requests = new RequestBatcher(this.#runner, SCRIPTS.ballots, {
      usual: () => this.#usualCaller,
      // A server that has restarted knows no scripts: the request that loads one has the node examine itself.
      toLoad: () => this.#caller("", "unread"),
      failed: (error) => {
        if (NOT_EXAMINED.test(reasonOf(error))) this.#examinedAt = -1;
      },
    });
  }

  async join(): Promise<NodeState> {
    const { losses } = this.#runner.connection;
    const fsync = await this.#readFsync();
    const args = this.#caller("", fsync);
    const reply = this.#learn(await this.#runner.run(SCRIPTS.join, [MARKER], args));
    const marker = this.#marker;
    const [runId = "", recoveringMs, micros] = reply.split(" ");
    const isTwin = this.#twinOf(runId) !== undefined;
    if (isTwin) this.#servers.delete(this);
    else this.#servers.set(this, runId);
    // On another connection, the settings may be those of another server.
    const isSameConnection = losses === this.#runner.connection.losses;
    this.#examinedAt = isSameConnection && !isTwin ? losses : -1;
    return {
      runId,
      recoveringForMs: Number(recoveringMs),
      micros: Number(micros),
      marker,
      isNew: / new\d+$/.test(marker),
    };
  }

  async settle(marker: string): Promise<void> {
    const args = [...this.#caller("", "unread"), marker];
    this.#learn(await this.#runner.run(SCRIPTS.settle, [MARKER], args));
  }

  claim(claim: NodeClaim): Promise<NodeClaimReply> {
    return this.#vote(encodeClaim(claim));
  }

  raise(name: string, id: string, number: number): Promise<boolean> {
    return this.#vote(encodeRaise(name, id, number));
  }

  release(release: NodeRelease): Promise<NodeReleaseReply> {
    const request = encodeRelease(release);
    const send = (): Promise<NodeReleaseReply> => this.#sendNow(request);
    // A release names its ballot, so it does no harm at another server, but it must not overtake a claim that
    // waits for the examination.
    const sent = this.#examination === null ? send() : this.#examination.then(send, send);
    return sent.catch((error: unknown) => {
      if (this.#isExamined) throw error;
      return this.#examine().then(send);
    });
  }

  pass(name: string): Promise<void> {
    return this.#send(encodePass(name));
  }

  async renew(renewals: readonly NodeRenewal[]): Promise<readonly NodeRenewReply[]> {
    if (!this.#isExamined) await this.#examine();
    const replies = await this.#runner.runForEach(renewals, "", {
      script: SCRIPTS.renewals,
      keysOf: ({ name }) => [recordOf(name), counterOf(name), revokedOf(name)],
      argsOf: ({ id, number, ttlMs, seq, closedForMs, holder }) => [
        id,
        ...[number, ttlMs, seq, closedForMs].map(String),
        holder,
      ],
      read: (reply: Json): NodeRenewReply =>
        reply?.kind === "error"
          ? { kind: "error", cause: this.#runner.caughtError(reply.cause) }
          : (reply ?? { kind: "error", cause: new Error(`${this.where} sent a short reply`) }),
    });
    if (!this.#isExamined) throw this.#connectionLost();
    return replies;
  }

  async revoke({ name, id, number, holder, by, why }: NodeRevocation): Promise<void> {
    const keys = [recordOf(name), counterOf(name), revokedOf(name)];
    const args = [id, String(number), holder, by, why];
    await this.#runner.run(SCRIPTS.revoke, keys, args);
  }

  async inspect(names: readonly string[]): Promise<readonly (NodeNameInfo | Error)[]> {
    const infos: (NodeNameInfo | Error)[] = [];
    for (const some of slices(names, NAMES_PER_SCRIPT)) {
      const replies = await this.#runner.runForEach(some, "", {
        script: SCRIPTS.inspect,
        keysOf: (name) => [recordOf(name), revokedOf(name)],
        argsOf: () => [],
        read: (info: Json) =>
          info?.problem === undefined
            ? readInfo(info)
            : (this.#runner.caughtError(info.problem) as Error),
      });
      infos.push(...replies);
    }
    return infos;
  }

  async names(prefix: string): Promise<readonly string[]> {
    const keys = await this.#runner.scan(patternOf(prefix));
    return [...new Set(keys.map(nameOfRecord))];
  }

  async listen({ freed, missed, isNeeded }: NodeEvents): Promise<void> {
    const { connection } = this.#runner;
    const events = { message: freed, missed };
    this.#listener ??= new Listener(this.#channel, connection, events, isNeeded);
    if (this.#listener.isOpen) return;
    await this.#listener.open();
    // A release between the claim and this subscription found no listener.
    missed();
  }

  async stopListening(): Promise<void> {
    await this.#listener?.close();
  }

  async close(): Promise<void> {
    await this.stopListening();
    if (this.#closeClient) await this.#runner.connection.close();
  }

  /**
   * The first arguments of the scripts that look at the marker. Only `join` says what it has read of the
   * settings: they may change, and a request may be sent again on the next connection.
   */
  #caller(marker: string, fsync: string): readonly string[] {
    return [marker, String(this.#maxTtlMs), `${fsync} ${this.#channel}`];
  }

  /** Whether the server was examined on the connection that there is. */
  get #isExamined(): boolean {
    return this.#examinedAt === this.#runner.connection.losses;
  }

  /** Another node of the quorum that was this server when it was examined. */
  #twinOf(runId: string): RedisNode | undefined {
    return [...this.#servers].find(([node, one]) => node !== this && one === runId)?.[0];
  }

  /** After a reconnection: the address may lead to another server, or to one with other settings. */
  #examine(): Promise<void> {
    this.#examination ??= this.join()
      .then(({ runId }) => {
        const twin = this.#twinOf(runId);
        if (twin !== undefined) throw sameServer(twin.where, this.where);
        if (!this.#isExamined) throw this.#connectionLost();
      })
      .finally(() => {
        this.#examination = null;
      });
    return this.#examination;
  }

  #connectionLost(): Error {
    return new Error(`the connection to ${this.where} was lost before its reply`);
  }

  /** A request whose reply counts only if the server that sent it was examined. */
  #vote<T>(request: EncodedRequest<T>): Promise<T> {
    return this.#send(request, true);
  }

  #send<T>(request: EncodedRequest<T>, isVote = false): Promise<T> {
    if (this.#isExamined) return this.#sendNow(request, isVote);
    return this.#examine().then(() => this.#sendNow(request, isVote));
  }

  #sendNow<T>({ keys, args, read }: EncodedRequest<T>, isVote = false): Promise<T> {
    return this.#requests.send(keys, args, (reply) => {
      const text = this.#learn(reply);
      if (text.startsWith("!")) throw this.#runner.caughtError(text.slice(1));
      if (isVote && !this.#isExamined) throw this.#connectionLost();
      return read(text);
    });
  }

  /** Reads the marker off a reply that has it. A node that is out of service examines itself every time. */
  #learn(reply: string): string {
    const mayBeKept = reply.startsWith("@");
    if (!mayBeKept && !reply.startsWith("#")) return reply;
    const end = reply.indexOf("\n");
    const marker = reply.slice(1, end);
    this.#marker = marker;
    const isInService = mayBeKept && marker.endsWith(" 0");
    this.#usualCaller = this.#caller(isInService ? marker : "", "unread");
    return reply.slice(end + 1);
  }

  /** The right to read the configuration is rare, and not needed. */
  async #readFsync(): Promise<"always" | "later" | "unknown"> {
    try {
      const [server] = await this.#runner.connection.servers();
      const isSet = async ([name, value]: [string, string]): Promise<boolean> =>
        pairsOf(await server!.command("CONFIG", "GET", name))[0]?.[1] === value;
      const areSet = await Promise.all(Object.entries(DURABLE).map(isSet));
      return areSet.every((yes) => yes) ? "always" : "later";
    } catch (error) {
      const failure = this.#runner.toStoreError(error);
      // The server would count as one that has lost its data, and stay out of the vote for maxTtl.
      if (LOGIN_REFUSED.test(reasonOf(error))) throw failure;
      if (HoldfastError.is(failure) && failure.retryable) throw failure;
      return "unknown";
    }
  }
}

function readInfo(info: Json): NodeNameInfo {
  const { record, revoked } = info;
  return {
    record: record === undefined ? null : { ...record, number: Number(record.number) },
    revoked: listOf<Json>(revoked).map((one) => ({ ...one, token: BigInt(one.token) })),
  };
}
