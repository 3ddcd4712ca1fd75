import { InvalidArgumentError } from "../core/errors.js";

export interface StoreUrl {
  /** In lower case, without the colon. */
  readonly scheme: string;
  readonly user: string;
  readonly password: string;
  readonly hosts: readonly { readonly host: string; readonly port: number | null }[];
  /** The path after the hosts, with its leading slash; in a URL without hosts, the path of the file. */
  readonly path: string;
  readonly options: ReadonlyMap<string, string>;
}

/** The part of a URL after the scheme: nothing, the path of a file on this machine, or hosts. */
export type UrlForm = "bare" | "file" | "hosts";

/**
 * Reads `scheme://[user:pass@]host:port,host:port[/path][?option=…]`, where `forms` has the known
 * schemes. Throws InvalidArgumentError; no message repeats the URL, because it may hold a password.
 */
export function parseUrl(url: unknown, forms: ReadonlyMap<string, UrlForm>): StoreUrl {
  if (typeof url !== "string") {
    throw new InvalidArgumentError(
      `the store's URL is of type ${typeof url}; it must be a string such as "sqlite:./locks.db"`,
    );
  }
  const [, word = "", rest = "", query = ""] =
    /^([a-z][a-z0-9+.-]*):([^?]*)(?:\?(.*))?$/is.exec(url) ?? [];
  const scheme = word.toLowerCase();
  const form = forms.get(scheme);
  if (form === undefined) {
    const known = [...forms.keys()].map((one) => `${one}:`).join(" ");
    const what = scheme === "" ? "has no scheme" : `has the unknown scheme "${scheme}:"`;
    const isAddress = /^[^/@?]+:\d{1,5}(?:[/?]|$)/.test(url);
    const hint = isAddress ? "; a host and port need a scheme, such as redis://HOST:PORT" : "";
    throw new InvalidArgumentError(`the store's URL ${what}; known: ${known}${hint}`);
  }
  const options = parseOptions(query);
  return form === "hosts"
    ? { scheme, options, ...parseHosts(scheme, rest) }
    : { scheme, options, ...NO_HOSTS, path: parsePath(scheme, rest, form) };
}

const NO_HOSTS = { user: "", password: "", hosts: [] } as const;

function parsePath(scheme: string, rest: string, form: "bare" | "file"): string {
  if (form === "file" && /^\/\/[^/]/.test(rest)) {
    throw new InvalidArgumentError(
      `${scheme}: URLs have no host: write ${scheme}:PATH, or ${scheme}:///PATH from the root`,
    );
  }
  const path = decode(rest.replace(/^\/\//, ""), "path");
  if (form === "file" || path === "") return path;
  throw new InvalidArgumentError(`${scheme}: takes no path: write ${scheme}: alone`);
}

function parseHosts(scheme: string, rest: string): Omit<StoreUrl, "scheme" | "options"> {
  // An "@" after the hosts would be a password's "/" that is not written as %2F.
  const [, login = "", hosts = "", path = ""] =
    /^\/\/(?:([^@/]*)@)?([^@/]*)(\/[^@]*)?$/s.exec(rest) ?? [];
  if (hosts === "") {
    throw new InvalidArgumentError(
      `the store's URL must look like ${scheme}://host:port,host:port/path (a password's special characters as %XX)`,
    );
  }
  const [user = "", password = ""] = splitOnce(login, ":");
  return {
    user: decode(user, "user"),
    password: decode(password, "password"),
    hosts: hosts.split(",").map(parseHost),
    path: decode(path, "path"),
  };
}

/** Throws InvalidArgumentError if the URL has an option that is not among the known ones. */
export function refuseUnknownOptions(
  { scheme, options }: StoreUrl,
  known: readonly string[],
  form: UrlForm,
): void {
  const unknown = [...options.keys()].find((key) => !known.includes(key));
  if (unknown === undefined) return;
  const list = known.length > 0 ? `; known: ${known.join(", ")}` : "";
  // Options that hold an "@" are the rest of a password with a "?" in it.
  if ([...options].flat().some((text) => text.includes("@"))) {
    throw new InvalidArgumentError(
      `the ${scheme}: URL has an unknown option${list}; write a "?" in a password as %3F`,
    );
  }
  const hint = /^(?:ssl|tls)/i.test(unknown)
    ? tlsHint(scheme, known)
    : form === "file"
      ? '; write a "?" in a path as %3F'
      : "";
  throw new InvalidArgumentError(
    `${scheme}: URLs have no option ${JSON.stringify(unknown)}${list}${hint}`,
  );
}

function tlsHint(scheme: string, known: readonly string[]): string {
  if (scheme === "redis") return "; write rediss: for TLS";
  return known.includes("tls") ? "; write tls=1 for TLS" : "";
}

/** `host:port`, with an IPv6 address in brackets. */
export const addressOf = (host: string, port: number): string =>
  `${host.includes(":") ? `[${host}]` : host}:${port}`;

function parseHost(text: string, index: number): { host: string; port: number | null } {
  const match = /^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::(\d{1,5}))?$/.exec(text);
  const port = match?.[2] === undefined ? null : Number(match[2]);
  if (match === null || (port !== null && (port < 1 || port > 65_535))) {
    throw new InvalidArgumentError(
      // The text itself may be part of a password with an unescaped "/" or ",".
      `host ${index + 1} of the store's URL is not host:port: a port is from 1 to 65535, an IPv6 address ` +
        "stands in [], and special characters of a password are written as %XX",
    );
  }
  return { host: match[1]!.replace(/^\[(.*)\]$/, "$1"), port };
}

function parseOptions(query: string): Map<string, string> {
  const options = new Map<string, string>();
  for (const pair of query === "" ? [] : query.split("&")) {
    const [name = "", value = ""] = splitOnce(pair, "=");
    const key = decode(name, "option");
    if (key === "" || options.has(key)) {
      throw new InvalidArgumentError(
        `the store's URL has ${key === "" ? "an option without a name" : "an option twice"}`,
      );
    }
    options.set(key, decode(value, "option"));
  }
  return options;
}

function decode(text: string, what: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new InvalidArgumentError(
      `the ${what} in the store's URL has a "%" that is not followed by two hexadecimal digits; write "%" as %25`,
    );
  }
}

function splitOnce(text: string, separator: string): string[] {
  const at = text.indexOf(separator);
  return at === -1 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}
