import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { connect, openStore } from "../../src/connect.js";
import { InvalidArgumentError } from "../../src/core/errors.js";
import { kindOf, parseStoreUrl, STORE_KINDS } from "../../src/stores/registry.js";
import { parseUrl } from "../../src/stores/url.js";
import { refusal, rejection } from "../core/helpers.js";
import { runs } from "../support/chance.js";

const SCHEMES = STORE_KINDS.filter(({ form }) => form === "hosts").flatMap(
  ({ schemes }) => schemes,
);

const FORMS = new Map(
  STORE_KINDS.flatMap(({ schemes, form }) => schemes.map((scheme) => [scheme, form] as const)),
);

/** Parsed by syntax alone: options that no store has are allowed. */
const parseAny = (url: unknown) => parseUrl(url, FORMS);

const options = (url: string): Record<string, string> => Object.fromEntries(parseAny(url).options);

function refused(url: unknown, ...inMessage: string[]): string {
  return refusedBy(parseAny, url, ...inMessage);
}

function refusedBy(parse: (url: unknown) => unknown, url: unknown, ...inMessage: string[]): string {
  const error = refusal(() => parse(url));
  expect(error).toBeInstanceOf(InvalidArgumentError);
  for (const part of inMessage) expect(error.message).toContain(part);
  return error.message;
}

describe("a store URL", () => {
  it.each(SCHEMES)("with the scheme %s: has hosts, user, password, path and options", (scheme) => {
    const url = parseAny(`${scheme}://me:pw@a.example:1,b-2.example:65535/x/y?tls=on&ca=%2Fca`);
    expect(url).toMatchObject({
      scheme,
      user: "me",
      password: "pw",
      hosts: [
        { host: "a.example", port: 1 },
        { host: "b-2.example", port: 65_535 },
      ],
      path: "/x/y",
    });
    expect(Object.fromEntries(url.options)).toEqual({ tls: "on", ca: "/ca" });
  });

  it("may have its scheme in capitals; an unknown scheme is named in full", () => {
    expect(parseStoreUrl("REDIS://h:1")).toEqual(parseStoreUrl("redis://h:1"));
    refused("redis+tls://h:1", 'the unknown scheme "redis+tls:"');
    refused("sqlite3:locks.db", 'the unknown scheme "sqlite3:"');
    refused("cache.internal:6379", 'the unknown scheme "cache.internal:"');
    refused("127.0.0.1:6379", "has no scheme", "such as redis://HOST:PORT");
    refused("localhost:6379", 'the unknown scheme "localhost:"', "such as redis://HOST:PORT");
    refused("user.name@host:6379", "has no scheme");
  });

  it("may have no ports, or only some", () => {
    expect(parseStoreUrl("etcd://a,b:2,c").hosts).toEqual([
      { host: "a", port: null },
      { host: "b", port: 2 },
      { host: "c", port: null },
    ]);
  });

  it("may have IPv6 addresses in brackets, beside others", () => {
    expect(parseStoreUrl("redis://[::1]:7001,[fe80::1],10.0.0.1:7002").hosts).toEqual([
      { host: "::1", port: 7_001 },
      { host: "fe80::1", port: null },
      { host: "10.0.0.1", port: 7_002 },
    ]);
    refused("redis://::1:6379", "stands in []");
    refused("redis://[::1", "stands in []");
    refused("redis://[::1]x:1");
    refused("redis://[]:1");
  });

  it("may have a user and a password, written with %XX", () => {
    expect(parseStoreUrl("redis://u%40x:p%3A%2F%3F%23%5B%25@h")).toMatchObject({
      user: "u@x",
      password: "p:/?#[%",
    });
    expect(parseStoreUrl("redis://:pw@h")).toMatchObject({ user: "", password: "pw" });
    expect(parseStoreUrl("redis://u@h")).toMatchObject({ user: "u", password: "" });
    expect(parseStoreUrl("redis://@h")).toMatchObject({ user: "", password: "" });
    // Only the first colon separates.
    expect(parseStoreUrl("redis://u:a:b@h").password).toBe("a:b");
  });

  it("may have options that are empty, contain = or are written with %XX", () => {
    expect(options("redis://h?a=&b&c=x=y&d%20e=%26")).toEqual({
      a: "",
      b: "",
      c: "x=y",
      "d e": "&",
    });
    expect(options("redis://h?")).toEqual({});
    expect(options("redis://h?path=/a/b?c")).toEqual({ path: "/a/b?c" });
    expect(parseAny("redis://h?__proto__=1").options.get("__proto__")).toBe("1");
  });

  it.each([
    ["sqlite:locks.db", "locks.db"],
    ["sqlite:./a/b.db", "./a/b.db"],
    ["sqlite:/var/x.db", "/var/x.db"],
    ["sqlite:///var/x.db", "/var/x.db"],
    ["sqlite:a%20b%3F.db", "a b?.db"],
    ["sqlite:C:/x.db", "C:/x.db"],
    ["sqlite:mail@host,x.db", "mail@host,x.db"],
    ["memory:", ""],
    ["memory://", ""],
  ])("%s has the path %j", (text, path) => {
    const url = parseStoreUrl(text);
    expect(url).toMatchObject({ path, hosts: [], user: "", password: "" });
  });
});

describe("a URL is refused", () => {
  it("if it is no text, without calling its methods", () => {
    for (const [bad, type] of [
      [undefined, "undefined"],
      [null, "object"],
      [5, "number"],
      [new URL("redis://u:secret@h"), "object"],
    ] as const) {
      expect(refused(bad, `type ${type}`)).not.toContain("secret");
    }
  });

  it("without a scheme or with an unknown one; the error lists the known ones", () => {
    refused("", "no scheme", "memory: sqlite:");
    refused("localhost", "no scheme");
    refused("//host", "no scheme");
    refused("mysql://h", '"mysql:"', "redis:");
    refused("redis", "no scheme");
    refused("localhost:6379", '"localhost:"');
  });

  it("if its scheme is a word that every object knows", () => {
    refused("constructor://h", '"constructor:"');
  });

  it.each([
    "redis:",
    "redis:h",
    "redis:/h",
    "redis://",
    "redis:///path",
    "redis://u:p@",
    "redis://u:p@/path",
    "redis://?a=1",
    "redis://h:0",
    "redis://h:65536",
    "redis://h:99999",
    "redis://h:123456",
    "redis://h:-1",
    "redis://h:1.5",
    "redis://h:x",
    "redis://h:",
    "redis://h: 1",
    "redis://h ",
    "redis://h\n",
    "redis://h,",
    "redis://,h",
    "redis://a,,b",
    "redis://a;b",
    "redis://a#b",
    "redis://höst",
    "redis://u:p@a,u:p@b",
    "redis://h/%zz",
    "redis://%zz@h",
    "redis://h/%c3%28",
    "redis://h?=1",
    "redis://h?a=1&&b=2",
    "redis://h?a=1&",
    "sqlite:100%.db",
  ])("that is malformed: %s", (url) => {
    refused(url);
  });

  it("for a file without a path, or for one in memory", () => {
    for (const url of ["sqlite:", "sqlite://", "sqlite::memory:"]) {
      refusedBy(parseStoreUrl, url, "sqlite: needs a file's path");
    }
  });

  it("with an option that the store does not have; the error lists those that it has", () => {
    const [nosuch, file] = ["redis://h?nosuch=1", "sqlite:a?b.db"];
    refusedBy(parseStoreUrl, nosuch, 'no option "nosuch"', "known: cluster, sentinel");
    refusedBy(parseStoreUrl, file, 'no option "b.db"', '"?" in a path as %3F');
    const hosted = "postgres://user:secret@db.example.com/app?sslmode=require";
    refusedBy(parseStoreUrl, hosted, 'no option "sslmode"', "write tls=1 for TLS");
    const durable = "postgres://h/app?durableRelease";
    refusedBy(parseStoreUrl, `${durable}=yes`, "write durableRelease=1");
    refusedBy(parseStoreUrl, `${durable}=1&mode=session`, "leave out either it or mode=session");
  });

  it("for a file's path that looks like a host, and for a password that looks like a path", () => {
    refused("sqlite://locks.db", "sqlite:///PATH");
    refused("redis://user:1234/x@host", "%XX");
  });

  it("with an option given twice, however it is written", () => {
    refused("redis://h?a=1&a=1", "twice");
    refused("redis://h?a&a", "twice");
    refused("redis://h?a=1&%61=2", "twice");
  });

  it("with a bad port, which the error names by its place: it may be part of a password", () => {
    refused("redis://one:1,two:0,three:3", "host 2", "1 to 65535");
  });
});

describe("a password is in no message", () => {
  const LEFT = "Left7Secret";
  const RIGHT = "Right9Secret";
  const texts = (password: string): string[] => [
    `redis://user:${password}@host:1`,
    `redis://:${password}@host:1`,
    `redis://user:${password}@host:99999`,
    `redis://user:${password}@`,
    `redis://user:${password}@a,b:x/path?a&a`,
    `mysql://user:${password}@host`,
    `redis:user:${password}@host`,
    `//user:${password}@host`,
  ];

  it.each([
    "",
    "@",
    "/",
    "?",
    "#",
    ":",
    "%",
    "%zz",
    ",",
    "&",
    "=",
    "[",
    "]",
    " ",
    "\n",
    "\\",
    "?a=%zz",
  ])("with %j in it, unescaped", async (middle) => {
    for (const url of texts(`${LEFT}${middle}${RIGHT}`)) {
      const error = await rejection(openStore(url));
      const shown = `${error.message} ${String(error.stack)} ${JSON.stringify(error)}`;
      expect(shown).not.toContain(LEFT);
      expect(shown).not.toContain(RIGHT);
    }
  });

  it("even when the rest of the URL is right", async () => {
    const error = await rejection(openStore(`consul://user:${LEFT}@host:1/0`));
    expect(error).toBeInstanceOf(InvalidArgumentError);
    expect(error.message).not.toContain(LEFT);
  });
});

describe("a URL that was composed from its parts is read back", () => {
  const host = fc.oneof(
    fc.stringMatching(/^[a-z0-9]([a-z0-9_.-]{0,12}[a-z0-9])?$/),
    fc.ipV4(),
    fc.ipV6().map((address) => `[${address}]`),
  );
  const text = fc.string({ unit: "grapheme", maxLength: 12 });
  const scheme = fc.constantFrom(...SCHEMES);

  it("with hosts", () => {
    fc.assert(
      fc.property(
        scheme,
        fc.array(fc.record({ host, port: fc.option(fc.integer({ min: 1, max: 65_535 })) }), {
          minLength: 1,
          maxLength: 5,
        }),
        fc.option(fc.record({ user: text, password: text })),
        fc.array(text, { maxLength: 3 }),
        fc.uniqueArray(
          fc.tuple(
            text.filter((key) => key !== ""),
            text,
          ),
          {
            maxLength: 4,
            selector: ([key]) => key,
          },
        ),
        (word, hosts, login, path, pairs) => {
          const e = encodeURIComponent;
          const url = [
            `${word}://`,
            login === null ? "" : `${e(login.user)}:${e(login.password)}@`,
            hosts.map((one) => (one.port ? `${one.host}:${one.port}` : one.host)).join(","),
            path.map((one) => `/${e(one)}`).join(""),
            pairs.length > 0 ? "?" : "",
            pairs.map(([key, value]) => `${e(key)}=${e(value)}`).join("&"),
          ].join("");
          const read = parseAny(url);
          expect(read).toMatchObject({
            scheme: word,
            user: login?.user ?? "",
            password: login?.password ?? "",
            hosts: hosts.map((one) => ({ ...one, host: one.host.replace(/[[\]]/g, "") })),
            path: path.map((one) => `/${one}`).join(""),
          });
          expect([...read.options]).toEqual(pairs);
        },
      ),
      runs(500),
    );
  });

  it("with a file's path", () => {
    fc.assert(
      fc.property(text, (path) => {
        fc.pre(path !== "");
        expect(parseStoreUrl(`sqlite:${encodeURIComponent(path)}`).path).toBe(path);
      }),
      runs(),
    );
  });

  it("while any other text is read or refused, nothing else", () => {
    const word = fc.constantFrom("redis://", "sqlite:", "memory:", "redis:", "");
    fc.assert(
      fc.property(word, fc.string({ unit: "binary" }), (start, rest) => {
        try {
          parseStoreUrl(start + rest);
        } catch (error) {
          expect(error).toBeInstanceOf(InvalidArgumentError);
        }
      }),
      runs(1_000),
    );
  });
});

describe.each(STORE_KINDS)("the registered store $schemes", (kind) => {
  it("has examples of its own, with traits of the scope that it names", async () => {
    for (const url of kind.examples) {
      const parsed = parseStoreUrl(url);
      expect(kindOf(parsed)).toBe(kind);
      expect((await kind.traits(parsed)).scope).toBe(kind.scope);
    }
  });

  it("is on the page about URLs", () => {
    const page = readFileSync(new URL("../../docs/urls.md", import.meta.url), "utf8");
    for (const scheme of kind.schemes) expect(page).toContain(`\`${scheme}:`);
  });
});

describe("connect", () => {
  it.each(["consul", "http", "https"])(
    "refuses %s:, and the error lists the known schemes",
    async (scheme) => {
      const error = await rejection(connect(`${scheme}://u:secret@h:1`));
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT", retryable: false });
      expect(error.message).toContain(`unknown scheme "${scheme}:"`);
      for (const { schemes } of STORE_KINDS) expect(error.message).toContain(`${schemes[0]}:`);
      expect(error.message).not.toContain("secret");
    },
  );

  it("opens memory: with the options for locks", async () => {
    const locks = await connect("memory:", { ttl: "5s" });
    const lease = await locks.acquire("a");
    expect(lease.remainingMs).toBeLessThan(5_000);
    expect(locks.traits.store).toBe("memory");
    await locks.close();
  });

  it("refuses a path or options for memory:", async () => {
    for (const url of ["memory:x", "memory:/x", "memory://x", "memory:///", "memory:%20"]) {
      const error = await rejection(connect(url));
      expect(error).toBeInstanceOf(InvalidArgumentError);
      expect(error.message).toContain("takes no path");
    }
    const error = await rejection(connect("memory:?ttl=5s"));
    expect(error).toBeInstanceOf(InvalidArgumentError);
    expect(error.message).toContain('no option "ttl"');
  });

  it("refuses bad options for locks", async () => {
    expect(await rejection(connect("memory:", { ttl: "1d" as never }))).toBeInstanceOf(
      InvalidArgumentError,
    );
    expect(await rejection(connect("memory:", { tll: 1 } as object))).toBeInstanceOf(
      InvalidArgumentError,
    );
    expect(await rejection(connect(undefined as unknown as string))).toBeInstanceOf(
      InvalidArgumentError,
    );
  });
});
