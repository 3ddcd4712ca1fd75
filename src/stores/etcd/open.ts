import { HoldfastError, InvalidArgumentError, StoreUnavailableError } from "../../core/errors.js";
import type { Store } from "../../core/store.js";
import { explainNetworkFailure } from "../shared/network-failure.js";
import { switchedTlsOf, tlsTrouble } from "../shared/tls.js";
import { addressOf, type StoreUrl } from "../url.js";
import { EtcdStore } from "./index.js";
import { PREFIX } from "./keys.js";
import {
  type EndpointStatus,
  type EtcdClient,
  type EtcdClientOptions,
  openEtcdClient,
  type RepliedStatus,
  repliedOf,
} from "./rpc/client.js";
import { Code, EtcdError } from "./rpc/errors.js";
import { faultsOf } from "./versions.js";

const PORT = 2379;
/** Timeout of the first read: an election takes a second or two. The status of all endpoints before and after takes one each. */
const ANSWER_MS = 2_500;
/** All keys under the prefix; "0" follows "/". */
export const OURS = { key: PREFIX, rangeEnd: `${PREFIX.slice(0, -1)}0` };

/** Opens a store by URL. Resolves when a majority of the members has answered. */
export async function openEtcdStore(url: StoreUrl): Promise<Store> {
  const client = await openEtcdClientOf(url);
  try {
    const faults = await faultsOf(client, reach(client, url));
    return new EtcdStore(client, { closeClient: true }, faults ?? undefined);
  } catch (error) {
    await client.close();
    throw error;
  }
}

/** A client by URL, which connects with the first call. */
export async function openEtcdClientOf(url: StoreUrl): Promise<EtcdClient> {
  const options = clientOptions(url);
  try {
    return await openEtcdClient(options);
  } catch (error) {
    if (HoldfastError.is(error)) throw error;
    throw new InvalidArgumentError(
      `the TLS options of an etcd: URL can't be used: ${(error as Error).message}`,
    );
  }
}

/** Checks what every claim needs: a leader, a majority, and the right to read the prefix. */
export async function reach(client: EtcdClient, url: StoreUrl): Promise<readonly RepliedStatus[]> {
  // If no endpoint can be connected to, that is known at once, and waiting would not help.
  const statuses = await client.status();
  if (statuses.every(({ error }) => error !== undefined && isUnreachable(error))) {
    throw unavailable(statuses[0]!.error!, statuses, url);
  }
  const answered = repliedOf(statuses);
  refuseSeveralClusters(answered);
  try {
    await client.range({ ...OURS, countOnly: true }, { timeoutMs: ANSWER_MS });
    return answered;
  } catch (error) {
    if (!(error instanceof EtcdError)) throw error;
    throw unavailable(error, error.retryable ? await client.status() : [], url);
  }
}

/** A client that moved from one cluster to the other would be granted names that are held. */
function refuseSeveralClusters(answered: readonly RepliedStatus[]): void {
  const other = answered.find(({ cluster }) => cluster !== answered[0]!.cluster);
  if (other === undefined) return;
  throw new InvalidArgumentError(
    `${answered[0]!.endpoint} and ${other.endpoint} are members of different clusters of etcd: ` +
      "name the members of one cluster only",
  );
}

const isUnreachable = ({ grpcCode, executed }: EtcdError): boolean =>
  grpcCode === Code.UNAVAILABLE && executed === "no";

/** Says what is wrong at each endpoint, as far as that is known. */
function unavailable(
  error: EtcdError,
  statuses: readonly EndpointStatus[],
  url: StoreUrl,
): StoreUnavailableError {
  const reasons = new Map<string, string>();
  for (const status of statuses) {
    if (status.error !== undefined) reasons.set(status.endpoint, explainError(status.error, url));
    else if (status.leader === 0n) reasons.set(status.endpoint, NO_LEADER);
  }
  const where = error.endpoint ?? hostsOf(url);
  if (!reasons.has(where)) reasons.set(where, explainError(error, url));
  const all = [...reasons].map(([endpoint, reason]) => `${endpoint}: ${reason}`);
  return new StoreUnavailableError(`can't use etcd at ${all.join("; ")}`, {
    cause: error,
    retryable: error.retryable,
  });
}

const NO_LEADER = "it has no leader: a majority of its members can't be reached";

/** Explanations for messages of the server or the library. */
const MEANINGS: readonly [RegExp, (url: StoreUrl) => string][] = [
  [/Name resolution failed/, () => "the host name is not known: check the address"],
  [
    /user name is empty/,
    () => "it requires a user and a password before the hosts of the URL, or a user's certificate",
  ],
  [/authentication failed/, ({ user }) => `wrong password, or no user ${JSON.stringify(user)}`],
  [/no leader/, () => NO_LEADER],
];

/** Why a request to etcd failed, in words that say what to do. */
export function explainError({ message, grpcCode, endpoint }: EtcdError, url: StoreUrl): string {
  const meaning =
    tlsTrouble(message, url) ??
    explainNetworkFailure(message) ??
    MEANINGS.find(([pattern]) => pattern.test(message))?.[1](url);
  if (meaning !== undefined) return meaning;
  const text = message.replace(endpoint === null ? "etcd: " : `etcd at ${endpoint}: `, "").trim();
  if (grpcCode === Code.PERMISSION_DENIED) {
    return `${text}: the user needs a role with readwrite on the prefix ${PREFIX}`;
  }
  // How the server or the library words a mismatch of TLS differs by version.
  if (!text.startsWith("can't connect")) return text;
  return url.options.has("tls")
    ? `${text} (does it speak TLS on that port?)`
    : `${text} (is it etcd? does it expect TLS? then add tls=1)`;
}

const hostsOf = ({ hosts }: StoreUrl): string =>
  hosts.map(({ host, port }) => addressOf(host, port ?? PORT)).join(", ");

function clientOptions(url: StoreUrl): EtcdClientOptions {
  if (url.path !== "" && url.path !== "/") {
    throw new InvalidArgumentError(
      "an etcd: URL has no path: etcd has no databases; to keep locks apart, use a namespace",
    );
  }
  if (url.password !== "" && url.user === "") {
    throw new InvalidArgumentError(
      "an etcd: URL with a password also needs a user: write user:password@ before the hosts",
    );
  }
  const tls = switchedTlsOf(url);
  return {
    endpoints: url.hosts.map(({ host, port }) => addressOf(host, port ?? PORT)),
    ...(tls === null ? {} : { tls }),
    ...(url.user === "" ? {} : { user: url.user, password: url.password }),
  };
}
