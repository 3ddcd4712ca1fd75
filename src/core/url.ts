import { InvalidArgumentError } from "./errors.js";

export interface StoreUrl {
  readonly scheme: Scheme;
  readonly user: string;
  readonly password: string;
  readonly hosts: readonly { readonly host: string; readonly port: number | null }[];
  /** After the hosts, with its leading slash; for `sqlite:` the file's path. */
  readonly path: string;
  readonly options: ReadonlyMap<string, string>;
}

const SCHEMES = [
  "memory",
  "sqlite",
  "redis",
  "rediss",
  "redlock",
  "postgres",
  "etcd",
  "zookeeper",
  "http",
  "https",
] as const;
export type Scheme = (typeof SCHEMES)[number];
/** Their URLs can be read, but there is no store for them yet. */
const PLANNED: readonly Scheme[] = ["redlock", "postgres", "zookeeper", "http", "https"];

/** Their store lives in this process or on this machine: they have a path, not hosts. */
const EMBEDDED: readonly Scheme[] = ["memory", "sqlite"];
const ALIASES = new Map<string, Scheme>([["postgresql", "postgres"]]);

/** Reads `scheme://[user:pass@]host:port,host:port[/path][?option=…]`. Never repeats the URL in an error: it may hold a password. */
export function parseStoreUrl(url: unknown): StoreUrl {
  if (typeof url !== "string") {
    throw new InvalidArgumentError(
      `the store's URL is of type ${typeof url}; it must be a string such as "sqlite:./locks.db"`,
    );
  }
  const match = /^([a-z][a-z0-9+.-]*):([^?]*)(?:\?(.*))?$/is.exec(url);
  const word = match?.[1]?.toLowerCase() ?? "";
  const scheme = ALIASES.get(word) ?? SCHEMES.find((one) => one === word);
  if (match === null || scheme === undefined) {
    throw new InvalidArgumentError(
      `the store's URL ${word === "" ? "has no scheme" : `has the unknown scheme "${word}:"`}; ` +
        `known: ${SCHEMES.filter((one) => !PLANNED.includes(one))
          .map((one) => `${one}:`)
          .join(" ")}`,
    );
  }
  const options = parseOptions(match[3] ?? "");
  const rest = match[2] ?? "";
  if (EMBEDDED.includes(scheme)) {
    if (scheme === "sqlite" && /^\/\/[^/]/.test(rest)) {
      throw new InvalidArgumentError(
        "sqlite: URLs have no host: write sqlite:PATH, or sqlite:///PATH from the root",
      );
    }
    const path = decode(rest.replace(/^\/\//, ""), "path");
    return { scheme, user: "", password: "", hosts: [], path, options };
  }
  // An "@" after the hosts would be a password's "/" that is not written as %2F.
  const parts = /^\/\/(?:([^@/]*)@)?([^@/]*)(\/[^@]*)?$/s.exec(rest);
  if (parts === null || parts[2] === "") {
    throw new InvalidArgumentError(
      `the store's URL must look like ${scheme}://host:port,host:port/path (a password's special characters as %XX)`,
    );
  }
  const [user = "", password = ""] = splitOnce(parts[1] ?? "", ":");
  return {
    scheme,
    user: decode(user, "user"),
    password: decode(password, "password"),
    hosts: parts[2]!.split(",").map(parseHost),
    path: decode(parts[3] ?? "", "path"),
    options,
  };
}

/** As in a URL: an IPv6 address in brackets. */
export const addressOf = (host: string, port: number): string =>
  `${host.includes(":") ? `[${host}]` : host}:${port}`;

function parseHost(text: string, index: number): { host: string; port: number | null } {
  const match = /^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::(\d{1,5}))?$/.exec(text);
  const port = match?.[2] === undefined ? null : Number(match[2]);
  if (match === null || (port !== null && (port < 1 || port > 65_535))) {
    throw new InvalidArgumentError(
      // The text itself may be part of a password with an unescaped "/" or ",".
      `host ${index + 1} of the store's URL is no host:port: a port is from 1 to 65535, an IPv6 address ` +
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
