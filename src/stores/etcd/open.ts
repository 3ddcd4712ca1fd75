import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { HoldfastError, InvalidArgumentError, StoreUnavailableError } from "../../core/errors.js";
import type { Store } from "../../core/store.js";
import type { StoreUrl } from "../../core/url.js";
import { EtcdStore } from "./index.js";
import { PREFIX } from "./keys.js";
import {
  type EndpointStatus,
  type EtcdClient,
  type EtcdClientOptions,
  openEtcdClient,
} from "./rpc/client.js";
import type { EtcdTls } from "./rpc/endpoints.js";
import { Code, EtcdError } from "./rpc/errors.js";
import { flawsOf } from "./versions.js";

export const ETCD_OPTIONS = ["tls", "ca", "cert", "key", "servername"] as const;

const PORT = 2379;
/** For the first answer: an election takes a second or two. A look at all endpoints before and after takes one each. */
const ANSWER_MS = 2_500;
/** Everything of ours; "0" follows "/". */
export const OURS = { key: PREFIX, rangeEnd: `${PREFIX.slice(0, -1)}0` };

type Answered = Extract<EndpointStatus, { error?: undefined }>;

/** Not before a majority has answered. */
export async function openEtcdStore(url: StoreUrl): Promise<Store> {
  const client = await openEtcdClientOf(url);
  try {
    const members = await reach(client, url);
    const versions = new Set(members.map(({ version }) => version));
    const flaws = [...versions].flatMap((one) => flawsOf(one, url.hosts.length).flaws);
    return new EtcdStore(client, { closeClient: true }, [...new Set(flaws)]);
  } catch (error) {
    await client.close();
    throw error;
  }
}

/** Connects when something is asked. */
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

/** Asks for what every claim needs: a leader, a majority, and the right to read our keys. */
export async function reach(client: EtcdClient, url: StoreUrl): Promise<readonly Answered[]> {
  // Where nobody can be connected to, that is known at once; only others are worth the wait.
  const statuses = await client.status();
  if (statuses.every(({ error }) => error !== undefined && isUnreachable(error))) {
    throw unavailable(statuses[0]!.error!, statuses, url);
  }
  const answered = statuses.filter((one): one is Answered => one.error === undefined);
  refuseSeveralClusters(answered);
  try {
    await client.range({ ...OURS, countOnly: true }, { timeoutMs: ANSWER_MS });
    return answered;
  } catch (error) {
    if (!(error instanceof EtcdError)) throw error;
    throw unavailable(error, error.moves ? await client.status() : [], url);
  }
}

/** Whoever moved from one to the other would be granted what is held there. */
function refuseSeveralClusters(answered: readonly Answered[]): void {
  const other = answered.find(({ cluster }) => cluster !== answered[0]!.cluster);
  if (other === undefined) return;
  throw new InvalidArgumentError(
    `${answered[0]!.endpoint} and ${other.endpoint} are of different clusters of etcd: ` +
      "one URL is for the members of one cluster",
  );
}

const isUnreachable = ({ grpcCode, executed }: EtcdError): boolean =>
  grpcCode === Code.UNAVAILABLE && executed === "no";

/** With what is wrong at each endpoint, as far as that is known. */
function unavailable(
  error: EtcdError,
  statuses: readonly EndpointStatus[],
  url: StoreUrl,
): StoreUnavailableError {
  const reasons = new Map<string, string>();
  for (const status of statuses) {
    if (status.error !== undefined) reasons.set(status.endpoint, why(status.error, url));
    else if (status.leader === 0n) reasons.set(status.endpoint, NO_LEADER);
  }
  const where = error.endpoint ?? hostsOf(url);
  if (!reasons.has(where)) reasons.set(where, why(error, url));
  const all = [...reasons].map(([endpoint, reason]) => `${endpoint}: ${reason}`);
  return new StoreUnavailableError(`can't use etcd at ${all.join("; ")}`, {
    cause: error,
    retryable: error.moves,
  });
}

const NO_LEADER = "it has no leader: a majority of its members is away";

/** What it may mean, by what the server or the library says. */
const MEANINGS: readonly [RegExp, (url: StoreUrl) => string][] = [
  [/ECONNREFUSED/, () => "nobody listens there (ECONNREFUSED)"],
  [/Name resolution failed/, () => "no such host is known"],
  [
    /altnames|ALTNAME/,
    () => "its certificate is for another name: say which with servername=NAME, if it is right",
  ],
  [/certificate has expired/, () => "its certificate has expired"],
  [
    /unable to (verify|get)|self.signed certificate|issuer certificate/i,
    () => "its certificate is not trusted: name the authority that signed it with ca=FILE",
  ],
  [
    /alert (bad certificate|certificate required|unknown ca|unsupported certificate)|alert number (42|43|46|48|116)/,
    ({ options }) =>
      options.has("cert")
        ? "it does not accept the certificate of the option cert"
        : "it wants a certificate of its clients: cert=FILE&key=FILE",
  ],
  [
    /user name is empty/,
    () => "it wants a user and a password before the hosts of the URL, or a user's certificate",
  ],
  [/authentication failed/, ({ user }) => `wrong password, or no user ${JSON.stringify(user)}`],
  [/no leader/, () => NO_LEADER],
];

export function why({ message, grpcCode, endpoint }: EtcdError, url: StoreUrl): string {
  const meaning = MEANINGS.find(([pattern]) => pattern.test(message))?.[1](url);
  if (meaning !== undefined) return meaning;
  const text = message.replace(endpoint === null ? "etcd: " : `etcd at ${endpoint}: `, "").trim();
  if (grpcCode === Code.PERMISSION_DENIED) {
    return `${text}: the user needs a role with readwrite on the prefix ${PREFIX}`;
  }
  // What either side says of the other's kind of hello differs by version.
  if (!text.startsWith("can't connect")) return text;
  return url.options.has("tls")
    ? `${text} (does it speak TLS on that port?)`
    : `${text} (does it expect TLS? then add tls=1)`;
}

const addressOf = (host: string, port: number | null): string =>
  `${host.includes(":") ? `[${host}]` : host}:${port ?? PORT}`;

const hostsOf = ({ hosts }: StoreUrl): string =>
  hosts.map(({ host, port }) => addressOf(host, port)).join(", ");

function clientOptions(url: StoreUrl): EtcdClientOptions {
  if (url.path !== "" && url.path !== "/") {
    throw new InvalidArgumentError(
      "an etcd: URL has no path: etcd has no databases; to keep locks apart, use a namespace",
    );
  }
  if (url.password !== "" && url.user === "") {
    throw new InvalidArgumentError(
      "an etcd: URL with a password needs a user too, before it and with a colon between them",
    );
  }
  const tls = tlsOf(url.options);
  return {
    endpoints: url.hosts.map(({ host, port }) => addressOf(host, port)),
    ...(tls === null ? {} : { tls }),
    ...(url.user === "" ? {} : { user: url.user, password: url.password }),
  };
}

function tlsOf(options: StoreUrl["options"]): EtcdTls | null {
  const switched = options.get("tls");
  const others = ETCD_OPTIONS.filter((name) => name !== "tls" && options.has(name));
  if (switched === undefined) {
    if (others.length === 0) return null;
    throw new InvalidArgumentError(
      `what an etcd: URL says of ${others.join(" and ")} is for TLS: add tls=1`,
    );
  }
  if (switched !== "1" && switched !== "") {
    throw new InvalidArgumentError("write tls=1 in an etcd: URL, or leave it out");
  }
  if (options.has("cert") !== options.has("key")) {
    throw new InvalidArgumentError("cert and key of an etcd: URL belong together: write both");
  }
  const servername = options.get("servername");
  if (servername === "") throw new InvalidArgumentError("servername of an etcd: URL is empty");
  const ca = pemOf(options, "ca", (text) => new X509Certificate(text));
  const cert = pemOf(options, "cert", (text) => new X509Certificate(text));
  const key = pemOf(options, "key", createPrivateKey);
  if (cert !== undefined && key !== undefined && !cert.parsed.checkPrivateKey(key.parsed)) {
    throw new InvalidArgumentError("the options cert and key do not belong together");
  }
  return {
    ...(ca === undefined ? {} : { ca: ca.text }),
    ...(cert === undefined ? {} : { cert: cert.text }),
    ...(key === undefined ? {} : { key: key.text }),
    ...(servername === undefined ? {} : { servername }),
  };
}

/** The library would say of what is none only that nothing can be verified with it. */
function pemOf<T>(
  options: StoreUrl["options"],
  name: string,
  parse: (text: string) => T,
): { text: string; parsed: T } | undefined {
  const path = options.get(name);
  if (path === undefined) return undefined;
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    throw new InvalidArgumentError(`the option ${name} can't be read: ${(error as Error).message}`);
  }
  try {
    return { text, parsed: parse(text) };
  } catch (error) {
    throw new InvalidArgumentError(
      `the option ${name} is no file in PEM that can be used: ${(error as Error).message}`,
    );
  }
}
