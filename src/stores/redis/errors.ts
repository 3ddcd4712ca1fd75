import { reasonOf, safeCause } from "../../core/cause.js";
import { HoldfastError, StoreUnavailableError, UnsupportedError } from "../../core/errors.js";
import { PREFIX } from "./keys.js";

/** The state of a server that its error messages mention. */
export interface ServerState {
  /** Its address, without user and password. */
  readonly where: string;
  readonly db: number;
  readonly cluster: boolean;
  /** The time since which there is no connection, and the reason if it is known. Null: there is one. */
  readonly outage: { readonly sinceMs: number; readonly why: string | null } | null;
}

/** The words in error messages that depend on the store. */
export interface StoreWords {
  /** All keys of the store begin with it. */
  readonly prefix: string;
  /** The page that lists the rights that the store needs. */
  readonly page: string;
  /** The function that takes a client. */
  readonly maker: string;
}

const REDIS_STORE: StoreWords = {
  prefix: PREFIX,
  page: "docs/stores/redis.md",
  maker: "redisStore",
};

const MOVED = /\bMOVED \d/;

type Meaning = [
  pattern: RegExp,
  describe: (server: ServerState, text: string, store: StoreWords) => string,
];

/** Replies that stay the same however often a request is repeated. */
const REFUSALS: readonly Meaning[] = [
  [
    /HOLDFAST STRANGER|WRONGTYPE/,
    (_server, _text, { prefix }) =>
      `a key that begins with ${JSON.stringify(prefix)} holds something that is not Holdfast's: delete it, or use another database`,
  ],
  [
    /\bNOAUTH\b|Authentication required/,
    ({ where }) =>
      `${where} requires a password (NOAUTH): write user:password@ before the host in the URL, ` +
      "or give your client a user name and a password",
  ],
  [
    /without any password configured|no password is set/,
    ({ where }) => `${where} has no password for the default user: leave it out of the URL`,
  ],
  [
    /WRONGPASS|invalid password|invalid username/i,
    ({ where }) =>
      `${where} refuses the user name or the password (WRONGPASS): check both; a user may also be disabled`,
  ],
  [
    /DB index is out of range|invalid DB index/i,
    ({ where, db }) =>
      `database ${db} of ${where} can't be used: the server has fewer (its setting "databases")`,
  ],
  [
    /\bNOPERM\b|can't run this command|No permissions|can't access/,
    ({ where, db }, text, { page }) => {
      const command = /the '([\w|]+)' command/.exec(text)?.[1];
      const may =
        command === undefined
          ? `the user at ${where} lacks a right that Holdfast needs (NOPERM)`
          : `the user at ${where} may not run ${command} (NOPERM)`;
      const select = db === 0 ? "" : `; database ${db} needs +select`;
      return `${may}: grant the rights that ${page} lists under "Keys and rights"${select}`;
    },
  ],
  [
    /unknown command [`'"]?sentinel\b/i,
    ({ where }) =>
      `${where} is not a sentinel: leave ?sentinel out of the URL, or write the addresses of the sentinels`,
  ],
  [
    /unknown (redis )?command/i,
    ({ where }, text) => {
      const command = /unknown command [`'"]?(\w+)/i.exec(text)?.[1] ?? "that a script needs";
      return (
        `${where} does not know the command ${command}: locks need Redis 6.2 or later with all of its ` +
        "commands under their own names, and no sentinel or filtering proxy at that address"
      );
    },
  ],
  [
    /\bMOVED \d|CROSSSLOT/,
    ({ where }) =>
      `${where} is a node of a Redis cluster: add ?cluster to the URL, or pass a client of the cluster`,
  ],
  [
    /cluster support disabled/i,
    ({ where }) => `${where} is not a cluster: leave ?cluster out of the URL`,
  ],
  [
    /allowed in this context|in subscriber mode/i,
    ({ where }, _text, { maker }) =>
      `the client for ${where} listens to channels and takes no other commands: pass ${maker}() a client of its own`,
  ],
  [
    /Protocol error, got|Unknown RESP type|Invalid RESP/i,
    ({ where }) =>
      `the server at ${where} does not speak the protocol of Redis: check host and port`,
  ],
];

/** Replies that may change: a retry helps. */
const TROUBLES: readonly Meaning[] = [
  [
    MOVED,
    ({ where }) =>
      `the nodes of ${where} do not agree yet which of them serves the name (MOVED), as after a failover`,
  ],
  [
    /\bREADONLY\b/,
    ({ where }) =>
      `${where} is a replica (READONLY), which grants nothing: name the primary, or its sentinels with ?sentinel=NAME`,
  ],
  [
    /HOLDFAST RESTARTED/,
    ({ where }) => `${where} has restarted, and is examined before it votes again`,
  ],
  [/\bLOADING\b/, ({ where }) => `${where} is still loading its data (LOADING)`],
  [
    /\bBUSY\b/,
    ({ where }) => `${where} runs somebody's slow script, and nothing else meanwhile (BUSY)`,
  ],
  [
    /\bMISCONF\b/,
    ({ where }) =>
      `${where} can't save its data and refuses writes (MISCONF): see the server's log; is its disk full?`,
  ],
  [
    /\bOOM\b/,
    ({ where }) => `the memory of ${where} is full (OOM): raise maxmemory, or delete other data`,
  ],
  [
    /\bNOREPLICAS\b/,
    ({ where }) => `${where} has too few replicas to write (NOREPLICAS, min-replicas-to-write)`,
  ],
  [/\bTRYAGAIN\b/, ({ where }) => `${where} is moving the slot to another node (TRYAGAIN)`],
  [/\bCLUSTERDOWN\b/, ({ where }) => `${where} does not serve all slots (CLUSTERDOWN)`],
  [/\bMASTERDOWN\b/, ({ where }) => `${where} is a replica without its primary (MASTERDOWN)`],
];

/** Messages of the client libraries about a connection that is lost, or breaks under a command. */
const CONNECTION_LOST =
  /Stream isn't writeable|Connection is closed|max retries per request|aborted due to connection|closed unexpectedly|client is (closed|offline)|Disconnects client|Socket timeout|\bE(CONN|PIPE|TIMEDOUT|HOST|NET)\w*|All sentinels are unreachable|Failed to refresh slots/;

const NOT_SENT = /isn't writeable|client is (closed|offline)/i;

/** Whether the client has refused to send a command, so that it was not executed. */
export const wasNotSent = (error: unknown): boolean => NOT_SENT.test(messageOf(error));

/** The option `commandTimeout` of ioredis. */
const NO_REPLY_IN_TIME = /^Command timed out$/;

/** A client's error as an error of Holdfast; one that is not known stays as it is. */
export function toStoreError(
  error: unknown,
  server: ServerState,
  store: StoreWords = REDIS_STORE,
): unknown {
  if (HoldfastError.is(error)) return error;
  removeCommand(error);
  const refused = replyError(error, server, store);
  if (refused !== null) return refused;
  const text = messageOf(error);
  if (NO_REPLY_IN_TIME.test(text)) {
    const message = `no reply from ${server.where} within the commandTimeout of its client`;
    return new StoreUnavailableError(message, { cause: safeCause(error) });
  }
  if (server.outage === null && !CONNECTION_LOST.test(text)) return error;
  return new StoreUnavailableError(describeLoss(server, text), { cause: safeCause(error) });
}

/** The server's error reply as an error of Holdfast; null: it is no reply that we know. */
export function replyError(
  error: unknown,
  server: ServerState,
  store: StoreWords = REDIS_STORE,
): HoldfastError | null {
  const text = messageOf(error);
  const format = /HOLDFAST FORMAT (\S+)/.exec(text)?.[1];
  if (format !== undefined) {
    return new UnsupportedError(
      `data at ${server.where} are in format ${format}, which this version of Holdfast does not know: use the version that wrote it`,
    );
  }
  if (text.includes("HOLDFAST LAST TOKEN")) {
    return new UnsupportedError(
      `the next token would be beyond 2^53, because the clock of ${server.where} is wrong: correct it`,
    );
  }
  const find = (meanings: readonly Meaning[]): Meaning[1] | undefined =>
    meanings.find(([pattern]) => pattern.test(text))?.[1];
  // A client of a cluster follows MOVED by itself: it gives up while the nodes do not agree.
  const isMoving = server.cluster && MOVED.test(text);
  const refusal = isMoving ? undefined : find(REFUSALS);
  const describe = refusal ?? find(TROUBLES);
  if (describe === undefined) return null;
  return new StoreUnavailableError(describe(server, text, store), {
    cause: safeCause(error),
    retryable: refusal === undefined,
  });
}

function describeLoss({ where, outage }: ServerState, text: string): string {
  // node-redis: connect() was never called, or its owner has closed it. It does not retry by itself.
  if (/client is closed/i.test(text)) {
    return `the client of ${where} is closed: call await client.connect() before you use the locks, and close it after them`;
  }
  const why = outage?.why ?? /\bE[A-Z]{4,}\b/.exec(text)?.[0] ?? null;
  const since =
    outage === null ? "" : ` for ${((performance.now() - outage.sinceMs) / 1_000).toFixed(1)} s`;
  const because = why === null ? "" : ` (${why})`;
  return `the connection to ${where} has been lost${since}${because}; the client tries to connect again`;
}

/** The message of an error; a cluster's client keeps that of its last node beside its own. */
export const messageOf = (error: unknown): string =>
  reasonOf((error as { lastNodeError?: unknown } | null)?.lastNodeError ?? error);

/** ioredis puts the command into its errors, with grantIds and the password. */
function removeCommand(error: unknown): void {
  if (error instanceof Error) delete (error as { command?: unknown }).command;
}
