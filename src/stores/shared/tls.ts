import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { InvalidArgumentError } from "../../core/errors.js";
import type { StoreUrl } from "../url.js";

/** Options of a URL for a connection by TLS; all but the last are paths of files in PEM. */
export const TLS_OPTIONS = ["ca", "cert", "key", "servername"] as const;

/** The fields for Node's `tls.connect`. */
export interface TlsFiles {
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
  readonly servername?: string;
}

/** Reads and checks the files: a client library would ignore an empty file, or report it late. */
export function tlsFilesOf({ scheme, options }: StoreUrl): TlsFiles {
  if (options.has("cert") !== options.has("key")) {
    throw new InvalidArgumentError(
      `the options cert and key of the ${scheme}: URL must be given together`,
    );
  }
  const servername = options.get("servername");
  if (servername === "")
    throw new InvalidArgumentError(`servername of the ${scheme}: URL is empty`);
  const ca = pemOf(options, "ca", (text) => new X509Certificate(text));
  const cert = pemOf(options, "cert", (text) => new X509Certificate(text));
  const key = pemOf(options, "key", createPrivateKey);
  if (cert !== undefined && key !== undefined && !cert.parsed.checkPrivateKey(key.parsed)) {
    throw new InvalidArgumentError(
      "the files of the options cert and key do not match: the key is not that of the certificate",
    );
  }
  return {
    ...(ca === undefined ? {} : { ca: ca.text }),
    ...(cert === undefined ? {} : { cert: cert.text }),
    ...(key === undefined ? {} : { key: key.text }),
    ...(servername === undefined ? {} : { servername }),
  };
}

/** The files of a URL whose option `tls` switches TLS on; null: it is off. */
export function switchedTlsOf(url: StoreUrl): TlsFiles | null {
  const { scheme, options } = url;
  const switched = options.get("tls");
  const others = TLS_OPTIONS.filter((name) => options.has(name));
  if (switched === undefined) {
    if (others.length === 0) return null;
    throw new InvalidArgumentError(
      `${scheme}: URLs with ${others.join(" and ")} need TLS: add tls=1`,
    );
  }
  if (switched !== "1" && switched !== "") {
    throw new InvalidArgumentError(`write tls=1 in ${scheme}: URLs, or leave it out`);
  }
  return tlsFilesOf(url);
}

/** Errors do not repeat the path: it may be the rest of a password with an unescaped "?". */
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
    const { code } = error as NodeJS.ErrnoException;
    throw new InvalidArgumentError(`the file of the option ${name} can't be read (${code})`);
  }
  try {
    return { text, parsed: parse(text) };
  } catch (error) {
    const what = name === "key" ? "private key without a passphrase" : "certificate";
    throw new InvalidArgumentError(
      `the file of the option ${name} has no usable ${what} in PEM: ${(error as Error).message}`,
    );
  }
}

/** The reason why the server rejects the client's certificate, or its absence. */
export const certificateTrouble = ({ options }: StoreUrl): string =>
  options.has("cert")
    ? "it does not accept the certificate of the option cert"
    : "it requires a client certificate: add cert=FILE&key=FILE to the URL";

const MEANINGS: readonly [RegExp, (url: StoreUrl) => string][] = [
  [
    /altnames|ALTNAME/,
    () =>
      "its certificate is for another name: if that name is right, add servername=NAME to the URL",
  ],
  [/certificate has expired|CERT_HAS_EXPIRED/, () => "its certificate has expired"],
  [
    /unable to (verify|get)|self.signed certificate|issuer certificate/i,
    () =>
      "its certificate is not trusted: add ca=FILE to the URL, with the certificate of the authority that signed it",
  ],
  [
    /alert (bad certificate|certificate required|unknown ca|unsupported certificate)|alert number (42|43|46|48|116)/,
    certificateTrouble,
  ],
];

/** The reason of a TLS error, by its message; undefined if it is another kind of error. */
export const tlsTrouble = (message: string, url: StoreUrl): string | undefined =>
  MEANINGS.find(([pattern]) => pattern.test(message))?.[1](url);
