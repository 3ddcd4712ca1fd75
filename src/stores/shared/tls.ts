import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { InvalidArgumentError } from "../../core/errors.js";
import type { StoreUrl } from "../../core/url.js";

/** Options of a URL for a connection by TLS; all but the last are paths of files in PEM. */
export const TLS_OPTIONS = ["ca", "cert", "key", "servername"] as const;

/** As Node's `tls.connect` takes them. */
export interface TlsFiles {
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
  readonly servername?: string;
}

/** Reads and checks the files: a client library would ignore an empty one, or tell of it late. */
export function tlsFilesOf({ scheme, options }: StoreUrl): TlsFiles {
  if (options.has("cert") !== options.has("key")) {
    throw new InvalidArgumentError(
      `cert and key of the ${scheme}: URL belong together: write both`,
    );
  }
  const servername = options.get("servername");
  if (servername === "")
    throw new InvalidArgumentError(`servername of the ${scheme}: URL is empty`);
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
      `the file of the option ${name} holds no ${what} in PEM that can be used: ${(error as Error).message}`,
    );
  }
}

/** The server does not go on with what the client has, or has not, shown. */
export const certificateTrouble = ({ options }: StoreUrl): string =>
  options.has("cert")
    ? "it does not accept the certificate of the option cert"
    : "it wants a certificate of its clients: cert=FILE&key=FILE";

const MEANINGS: readonly [RegExp, (url: StoreUrl) => string][] = [
  [
    /altnames|ALTNAME/,
    () => "its certificate is for another name: say which with servername=NAME, if it is right",
  ],
  [/certificate has expired|CERT_HAS_EXPIRED/, () => "its certificate has expired"],
  [
    /unable to (verify|get)|self.signed certificate|issuer certificate/i,
    () => "its certificate is not trusted: name the authority that signed it with ca=FILE",
  ],
  [
    /alert (bad certificate|certificate required|unknown ca|unsupported certificate)|alert number (42|43|46|48|116)/,
    certificateTrouble,
  ],
];

/** What is wrong between the two, by what TLS says of it; undefined: something else. */
export const tlsTrouble = (message: string, url: StoreUrl): string | undefined =>
  MEANINGS.find(([pattern]) => pattern.test(message))?.[1](url);
