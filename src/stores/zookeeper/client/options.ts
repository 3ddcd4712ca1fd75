import { X509Certificate } from "node:crypto";
import { createSecureContext } from "node:tls";
import { reasonOf } from "../../../core/cause.js";
import type { Clock } from "../../../core/clock.js";
import { InvalidArgumentError } from "../../../core/errors.js";
import { systemRuntime } from "../../../core/runtime.js";
import { checkNumber, checkOptions, checkSignal, show } from "../../../core/validate.js";
import type { TlsFiles } from "../../shared/tls.js";
import type { ConnectionTls } from "./connection.js";
import type { ZooKeeperEvents } from "./events.js";
import { Chroot } from "./paths.js";
import {
  type Acl,
  credentialsOf,
  type DigestLogin,
  type EncodedAcl,
  encodeAcl,
  OPEN_ACL,
} from "./records.js";
import { Servers } from "./servers.js";

/** Options of `ZooKeeperClient.open`. */
export interface ZooKeeperClientOptions {
  /** `host:port` of each server; 2181 is the default port. They are tried in random order. */
  readonly servers: readonly string[];
  /** The node that is the root of all paths of this client; it must exist. `/` by default. */
  readonly chroot?: string | undefined;
  /**
   * How long the session lives without a sign of life; 10,000 by default. The server raises or lowers it
   * to its own limits: read `sessionTimeoutMs` of the client.
   */
  readonly sessionTimeoutMs?: number | undefined;
  /** Timeout of each request, the wait for a connection included; 10,000 by default. */
  readonly requestTimeoutMs?: number | undefined;
  /** How long `open` waits for a session; 10,000 by default. */
  readonly connectTimeoutMs?: number | undefined;
  /**
   * A ping is sent when nothing else was for this long; a third of the session's timeout by default, and at most.
   * It is shortened as the server shortens the timeout.
   * A connection that is silent for three of these intervals, and for a second, is given up for another.
   */
  readonly pingIntervalMs?: number | undefined;
  /** The ACL of new nodes that are given none of their own; `OPEN_ACL` by default. */
  readonly acl?: readonly Acl[] | undefined;
  /** Digest authentication. Without TLS the password goes over the network in clear text. */
  readonly auth?: DigestLogin | undefined;
  /** Connects by TLS; `{}` trusts the authorities that Node trusts. Without it, nothing is encrypted. */
  readonly tls?: ZooKeeperTls | undefined;
  /** The longest reply that is accepted, in bytes; 4 MiB by default. A longer one ends the connection. */
  readonly maxReplyBytes?: number | undefined;
  /** Listeners from the start: others are added by `client.on`. */
  readonly on?: Partial<ZooKeeperEvents> | undefined;
  /** Ends the attempt to open a session: `open` then rejects with its reason. It has no effect on a client that is open. */
  readonly signal?: AbortSignal | undefined;
  /** Replaces the system's clock, for tests. */
  readonly clock?: Clock | undefined;
  /** Replaces the source of random numbers from 0 to below 1, for tests. */
  readonly random?: (() => number) | undefined;
}

/** Certificates in PEM, as for Node's `tls.connect`. */
export type ZooKeeperTls = TlsFiles;

const KNOWN = [
  ...["servers", "chroot", "sessionTimeoutMs", "requestTimeoutMs", "connectTimeoutMs"],
  ...["pingIntervalMs", "acl", "auth", "tls", "maxReplyBytes", "on", "signal", "clock", "random"],
];
const TLS_KEYS = ["ca", "cert", "key", "servername"];
const DEFAULT_MS = 10_000;
const DEFAULT_REPLY_BYTES = 4 * 1024 * 1024;
/** The limit of every option in milliseconds. */
export const LONGEST_MS = 24 * 3_600_000;

/** Checked options. The password is in `credentials` only. */
export interface SessionSettings {
  readonly servers: Servers;
  readonly chroot: Chroot;
  readonly sessionTimeoutMs: number;
  readonly requestTimeoutMs: number;
  readonly connectTimeoutMs: number;
  readonly pingIntervalMs: number;
  readonly acl: EncodedAcl;
  readonly credentials: string | null;
  readonly tls: ConnectionTls | undefined;
  readonly maxReplyBytes: number;
  readonly clock: Clock;
  readonly random: () => number;
}

/** Throws `InvalidArgumentError` for the first option that is not valid. */
export function checkedSettings(options: ZooKeeperClientOptions): SessionSettings {
  checkOptions(options, "the options of the ZooKeeper client", KNOWN);
  const { tls, auth, acl = OPEN_ACL } = options;
  const { clock = systemRuntime().clock, random = Math.random } = options;
  // It is often written as "user:password", which no message may show.
  if (typeof auth === "string") {
    throw new InvalidArgumentError("auth is a string; it must be { user, password }");
  }
  if (auth !== undefined) checkOptions(auth, "the options in auth", ["user", "password"]);
  if (typeof random !== "function") {
    throw new InvalidArgumentError(`random is ${show(random)}; it must be a function`);
  }
  checkSignal(options.signal);
  const ms = (name: keyof ZooKeeperClientOptions, fallback: number): number =>
    checkNumber(options[name] ?? fallback, name, { min: 1, max: LONGEST_MS });
  return {
    servers: new Servers(options.servers, random),
    chroot: new Chroot(options.chroot),
    sessionTimeoutMs: Math.ceil(ms("sessionTimeoutMs", DEFAULT_MS)),
    requestTimeoutMs: ms("requestTimeoutMs", DEFAULT_MS),
    connectTimeoutMs: ms("connectTimeoutMs", DEFAULT_MS),
    pingIntervalMs: ms("pingIntervalMs", LONGEST_MS),
    // Refused now, not with the first node.
    acl: encodeAcl(acl),
    credentials: auth === undefined ? null : credentialsOf(auth),
    tls: tls === undefined ? undefined : checkedTls(tls),
    maxReplyBytes: checkNumber(options.maxReplyBytes ?? DEFAULT_REPLY_BYTES, "maxReplyBytes", {
      min: 1_024,
      max: 2 ** 30,
      integer: true,
    }),
    clock,
    random,
  };
}

/** Reads the certificates now: later, a bad one would look like a server that can't be reached. */
function checkedTls(tls: ZooKeeperTls): ConnectionTls {
  checkOptions(tls, "the options in tls", TLS_KEYS);
  const { servername, ...certificates } = tls;
  try {
    // OpenSSL ignores a text that has no certificate in it.
    if (certificates.ca !== undefined) new X509Certificate(certificates.ca);
    const secureContext = createSecureContext(certificates);
    return servername === undefined ? { secureContext } : { secureContext, servername };
  } catch (error) {
    throw new InvalidArgumentError(
      `ca, cert or key of tls is no usable PEM, or they do not match: ${reasonOf(error)}`,
    );
  }
}
