import { type IncomingMessage, request, type ServerResponse } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
// @ts-expect-error: it has no types
import express from "express";
import { describe, expect, onTestFinished, test } from "vitest";
import type { Fenced } from "../../src/fence/fence.js";
import { fencedFetch, guardFetch, guardNode, type HttpGuard } from "../../src/fence/http.js";
import { memoryFence } from "../../src/fence/memory.js";
import { Refusal } from "../../src/fence/shared/problem.js";
import { createLocks, type Lease, type Locks, StoreUnavailableError } from "../../src/index.js";
import {
  type IdempotentHttpOptions,
  idempotent,
  idempotentFetch,
  idempotentNode,
} from "../../src/lockfree/index.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { Deferred, refusal, rejection } from "../core/helpers.js";
import { serve } from "../support/http-server.js";

/** The work of a handler of either form; it gets the body as text. */
type Work = (
  body: string,
  request: { aborted: AbortSignal; lease: Lease | null },
) => Promise<Reply> | Reply;
interface Reply {
  readonly status?: number;
  readonly headers?: Record<string, string | string[]>;
  readonly body?: string | Uint8Array | readonly (string | Uint8Array)[];
}

type Options = Omit<IdempotentHttpOptions<never>, "keep" | "scope">;
/** Sends a request to a service; its address is `/` for `path`. */
type Send = (init?: Init) => Promise<Response>;
interface Init {
  readonly key?: string | null;
  readonly user?: string;
  readonly method?: string;
  readonly path?: string;
  readonly body?: string | Uint8Array<ArrayBuffer>;
}

function openLocks(): Locks {
  const locks = createLocks(memoryStore());
  onTestFinished(() => locks.close());
  return locks;
}

const keyHeaders = ({ key = '"k"', user = "ann" }: Init): Record<string, string> => ({
  user,
  ...(key === null ? {} : { "idempotency-key": key }),
});

const sendTo =
  (url: string): Send =>
  async (init = {}) => {
    const { method = "POST", path = "/", body = method === "GET" ? null : "body" } = init;
    return fetch(url + path, { method, body, headers: keyHeaders(init) });
  };

const nodeOptions = (options: Options): IdempotentHttpOptions<IncomingMessage> => ({
  keep: "1h",
  scope: ({ headers }) => String(headers["user"]),
  ...options,
});

const FORMS: Record<string, (locks: Locks, work: Work, options?: Options) => Promise<Send>> = {
  async Fetch(locks, work, options = {}) {
    const scope = ({ headers }: Request): string => headers.get("user")!;
    const handle = idempotentFetch(
      locks,
      { keep: "1h", scope, ...options },
      async (request, lease) => {
        const reply = await work(await request.text(), { aborted: request.signal, lease });
        const { body = "" } = reply;
        const headers = Object.entries(reply.headers ?? {}).flatMap(([name, value]) =>
          [value].flat().map((one) => [name, one] as [string, string]),
        );
        const isList = Array.isArray(body);
        const content = isList
          ? Readable.toWeb(Readable.from(body.map((one) => Buffer.from(one))))
          : body;
        const status = reply.status ?? 200;
        return new Response(status === 204 ? null : (content as BodyInit), { status, headers });
      },
    );
    return async (init = {}) => {
      const { method = "POST", path = "/", body = method === "GET" ? null : "body" } = init;
      const headers = keyHeaders(init);
      return handle(new Request(`http://service${path}`, { method, body, headers }));
    };
  },
  async "node:http"(locks, work, options = {}) {
    const handle = idempotentNode(locks, nodeOptions(options), async (request, response, more) => {
      const gone = new AbortController();
      request.on("aborted", () => gone.abort());
      const reply = await work(String(more.body ?? ""), {
        aborted: gone.signal,
        lease: more.lease,
      });
      const { body = "" } = reply;
      response.writeHead(reply.status ?? 200, reply.headers);
      if (!Array.isArray(body)) response.end(body);
      else await pipeline(Readable.from(body, { objectMode: true }), response);
    });
    return sendTo(
      await serve((request, response) =>
        // As a framework does with an error of a handler.
        handle(request, response).catch((error: Error) => {
          response.writeHead(500).end(error.message);
        }),
      ),
    );
  },
};

type FetchForm = (
  locks: Locks,
  guard: HttpGuard<unknown>,
  work: () => string,
) => Promise<{ url: string; send: typeof fetch }>;

/** Fetch has no server around it that would answer. */
const statusOf = async (reply: Promise<Response>): Promise<number> =>
  reply.then(({ status }) => status).catch(() => 500);

const replayed = ({ headers }: Response): boolean => headers.get("idempotent-replayed") === "true";

describe.each(Object.entries(FORMS))("%s", (_, start) => {
  test("a repeated request gets the response of the first, and says so", async () => {
    let runs = 0;
    const send = await start(openLocks(), (body) => {
      const headers = { "content-type": "text/plain", location: "/charges/1" };
      return { status: 201, headers, body: `${body}, run ${++runs}` };
    });
    const first = await send();
    expect([first.status, replayed(first), await first.text()]).toEqual([
      201,
      false,
      "body, run 1",
    ]);
    // A string of structured fields and the bare text are the same key.
    for (const key of ['"k"', "k", ' "k" ']) {
      const again = await send({ key });
      expect([again.status, replayed(again)]).toEqual([201, true]);
      expect(again.headers.get("location")).toBe("/charges/1");
      expect(again.headers.get("content-type")).toBe("text/plain");
      expect(await again.text()).toBe("body, run 1");
    }
    expect(await (await send({ key: "other" })).text()).toBe("body, run 2");
  });

  test("a duplicate is refused with 409 while the first is in progress, or waits for it", async () => {
    const locks = openLocks();
    const begun = new Deferred<void>();
    const end = new Deferred<void>();
    const work = async () => {
      begun.resolve();
      await end.promise;
      return { body: "done" };
    };
    const send = await start(locks, work);
    const waiting = await start(locks, work, { wait: "20s" });
    const first = send();
    await begun.promise;
    const refused = await send();
    expect([refused.status, refused.headers.get("retry-after")]).toEqual([409, "1"]);
    expect(refused.headers.get("content-type")).toBe("application/problem+json");
    expect(await refused.json()).toMatchObject({ type: "urn:holdfast:problem:in-progress" });
    const waited = waiting();
    end.resolve();
    expect(await (await first).text()).toBe("done");
    expect([replayed(await waited), await (await waited).text()]).toEqual([true, "done"]);
  });

  test("another request under the same key is refused with 422, during and after the first", async () => {
    let during: Promise<number[]> | undefined;
    const others = [{ body: "other" }, { path: "/?a=1" }, { path: "/other" }, { method: "PATCH" }];
    const statuses = () => Promise.all(others.map(async (init) => (await send(init)).status));
    const send = await start(openLocks(), async () => {
      during ??= statuses();
      await during;
      return {};
    });
    expect((await send()).status).toBe(200);
    expect(await during).toEqual([422, 422, 422, 422]);
    expect(await statuses()).toEqual([422, 422, 422, 422]);
    expect((await (await send({ body: "other" })).json()).detail).toMatch(/new key/);
  });

  test("two users with the same key do not see each other's responses", async () => {
    const send = await start(openLocks(), (body) => ({ body: `for ${body}` }));
    for (const user of ["ann", "bob"]) {
      const own = await send({ user, body: user });
      expect([own.status, replayed(own), await own.text()]).toEqual([200, false, `for ${user}`]);
    }
    expect(await (await send({ user: "ann", body: "ann" })).text()).toBe("for ann");
  });

  test.each([
    ["binary", Uint8Array.from({ length: 256 }, (_, i) => i)],
    ["empty", ""],
    ["streamed", ["a", Buffer.from([0, 255]), "é"]],
  ] as const)("a body that is %s comes back as it was", async (_, body) => {
    const send = await start(openLocks(), () => ({ body }));
    const expected = Buffer.concat([body].flat().map((one) => Buffer.from(one as string)));
    for (const isReplay of [false, true]) {
      const response = await send();
      expect(replayed(response)).toBe(isReplay);
      expect(Buffer.from(await response.arrayBuffer())).toEqual(expected);
    }
  });

  test("a body without a content has none when it is replayed", async () => {
    const send = await start(openLocks(), () => ({ status: 204 }));
    for (const isReplay of [false, true]) {
      const response = await send();
      expect([response.status, replayed(response)]).toEqual([204, isReplay]);
      expect(await response.text()).toBe("");
    }
  });

  test("a response that is too large to be kept is sent, and then 410, and the work is not repeated", async () => {
    let runs = 0;
    const send = await start(openLocks(), () => {
      runs++;
      return { body: "x".repeat(700_001) };
    });
    expect((await (await send()).text()).length).toBe(700_001);
    const again = await send();
    expect([again.status, runs]).toEqual([410, 1]);
    expect(await again.json()).toMatchObject({ type: "urn:holdfast:problem:response-not-kept" });
  });

  test("a request that is too large is refused with 413, and its key is free", async () => {
    let runs = 0;
    const send = await start(openLocks(), () => ({ body: `${++runs}` }), { mostBodyBytes: 9 });
    expect((await send({ body: "x".repeat(3_000_000) })).status).toBe(413);
    expect((await send({ body: "x".repeat(10) })).status).toBe(413);
    expect(runs).toBe(0);
    expect((await send({ body: "x".repeat(9) })).status).toBe(200);
  });

  test("cookies, the date and headers of the connection are not replayed", async () => {
    const send = await start(openLocks(), () => ({
      headers: {
        "set-cookie": ["session=secret", "b=2"],
        date: "Thu, 01 Jan 1970 00:00:00 GMT",
        link: ["<a>", "<b>"],
      },
    }));
    const first = await send();
    expect(first.headers.getSetCookie()).toEqual(["session=secret", "b=2"]);
    const again = await send();
    expect(replayed(again)).toBe(true);
    expect(again.headers.getSetCookie()).toEqual([]);
    expect(String(again.headers.get("date"))).not.toMatch(/1970/);
    expect(again.headers.get("link")).toBe("<a>, <b>");
  });

  test.each([
    [200, true],
    [301, true],
    [404, true],
    [408, false],
    [403, true],
    [409, true],
    [412, false],
    [425, false],
    [428, false],
    [429, false],
    [500, false],
    [503, false],
  ])("status %i is kept: %s", async (status, isKept) => {
    let runs = 0;
    const send = await start(openLocks(), () => ({ status, body: `run ${++runs}` }));
    await send();
    // After a failure, the key is free for another request too.
    const again = await sendAgain(send, isKept);
    expect([again.status, replayed(again)]).toEqual([status, isKept]);
    expect(await again.text()).toBe(isKept ? "run 1" : "run 2");
  });

  test("which responses are kept is a choice", async () => {
    let runs = 0;
    const work = () => ({ status: ++runs === 1 ? 400 : 500 });
    const send = await start(openLocks(), work, { keepStatus: (status) => status === 500 });
    const statuses = [];
    for (let i = 0; i < 3; i++) statuses.push((await send()).status);
    expect([statuses, runs]).toEqual([[400, 500, 500], 2]);
  });

  test.each([
    [400, "bad-token", false],
    [403, "other-lock", false],
    [412, "stale-token", false],
    [428, "no-token", false],
    [400, "bad-resource", true],
  ])("a refusal with %i %s by a guard in the handler is kept: %s", async (status, type, isKept) => {
    const { problem } = new Refusal({
      type: `urn:holdfast:problem:${type}`,
      title: "refused",
      status,
      detail: "refused",
    });
    const headers = { "content-type": "application/problem+json" };
    const work = () => ({ status, headers, body: JSON.stringify(problem) });
    const send = await start(openLocks(), work, { keepStatus: () => true });
    await send();
    expect(replayed(await send())).toBe(isKept);
  });

  test("an error of the handler is the caller's, and is not kept", async () => {
    let runs = 0;
    const send = await start(openLocks(), () => {
      if (++runs === 1) throw new Error("declined");
      return { body: "fine" };
    });
    expect(await statusOf(send())).toBe(500);
    const again = await send({ body: "corrected" });
    expect([again.status, replayed(again), runs]).toEqual([200, false, 2]);
  });

  test("an outage is 503, and the logger gets its error", async () => {
    const store = memoryStore();
    const broken = { read: () => Promise.reject(new Error("connection refused at 10.0.0.1")) };
    const warnings: unknown[] = [];
    const logger = { debug() {}, info() {}, warn: (...args: unknown[]) => warnings.push(args) };
    const brokenStore = Object.assign(Object.create(store), { records: broken });
    const locks = createLocks(brokenStore, { logger });
    onTestFinished(() => locks.close());
    const refused = await (await start(locks, () => ({})))();
    expect([refused.status, refused.headers.get("retry-after")]).toEqual([503, "1"]);
    expect(await refused.text()).not.toContain("10.0.0.1");
    const message = expect.stringMatching(/got 503: .*10\.0\.0\.1/);
    expect(warnings).toMatchObject([[message, { error: { code: "STORE_UNAVAILABLE" } }]]);
  });

  test("the loss of the key's lease is 503, also if the handler throws it", async () => {
    const locks = openLocks();
    const revoke = async (): Promise<void> => {
      const [held] = await locks.list({ prefix: "idempotent:" });
      await locks.forceRelease(held!.name, { why: "test" });
    };
    const send = await start(locks, async (_, { lease }) => {
      await revoke();
      await lease!.renew();
      return {};
    });
    const refused = await send();
    expect([refused.status, refused.headers.get("retry-after")]).toEqual([503, "1"]);
    expect(await refused.json()).toMatchObject({ type: "urn:holdfast:problem:lease-lost" });
  });

  test("a Locks that is closed before the handler ends is 503, and so is a request afterwards", async () => {
    const locks = openLocks();
    const [begun, closed] = [new Deferred<void>(), new Deferred<void>()];
    const send = await start(locks, async () => {
      begun.resolve();
      await closed.promise;
      return {};
    });
    const first = send();
    await begun.promise;
    await locks.close({ grace: 1 });
    closed.resolve();
    for (const refused of [await first, await send({ key: "later" })]) {
      expect([refused.status, refused.headers.get("retry-after")]).toEqual([503, "1"]);
      expect(await refused.json()).toMatchObject({ detail: expect.stringContaining("same key") });
    }
  });

  test("a Locks of the handler's own that is closed is an error of the handler", async () => {
    const own = createLocks(memoryStore());
    await own.close();
    const send = await start(openLocks(), () => own.withLock("own", async () => ({})));
    expect(await statusOf(send())).toBe(500);
  });

  test("an outage and a loss that are the handler's own reach the caller, and are not kept", async () => {
    const locks = openLocks();
    let runs = 0;
    const send = await start(locks, async () => {
      if (++runs === 1) throw new StoreUnavailableError("no reply from db-1");
      if (runs === 2) {
        await locks.withLock("own", async () => {
          await locks.forceRelease("own", { why: "test" });
        });
      }
      return { body: "fine" };
    });
    const statuses: number[] = [];
    for (let i = 0; i < 3; i++) statuses.push(await statusOf(send()));
    expect([statuses, runs]).toEqual([[500, 500, 200], 3]);
  });

  test("an error about a key of the handler's own is the handler's, and no refusal of this request", async () => {
    const locks = openLocks();
    const idempotently = (fingerprint: string) =>
      idempotent(locks, "order", { keep: "1h", fingerprint }, () => ({ body: fingerprint }));
    const send = await start(locks, (body) => idempotently(body));
    expect(await (await send({ key: "a", body: "1" })).text()).toBe("1");
    // OtherRequestError: as 422 it would tell the client that its own key was used.
    expect(await statusOf(send({ key: "b", body: "2" }))).toBe(500);
  });

  test.each([
    ["missing", null],
    ["empty", ""],
    ["an empty string", '""'],
    ["too long", "k".repeat(256)],
    ["too long in quotes", `"${"k".repeat(256)}"`],
    ["not ASCII", "clé"],
    ["two keys", "a, b"],
    ["two strings", '"a", "b"'],
    ["an open string", '"a'],
    ["with a space", "a b"],
  ])("a key that is %s is refused with 400", async (_, key) => {
    const send = await start(openLocks(), () => ({ body: "ran" }));
    const refused = await send({ key });
    expect(refused.status).toBe(400);
    const { detail } = (await refused.json()) as { detail: string };
    expect(detail).toMatch(/Idempotency-Key with 1 to 255/);
  });

  test.each([["k".repeat(255)], [`"${"k".repeat(255)}"`], ['"a \\"b\\" \\\\, c"'], ["a/b:c=;"]])(
    "%s is a key",
    async (key) => {
      const send = await start(openLocks(), () => ({}));
      expect((await send({ key })).status).toBe(200);
      expect(replayed(await send({ key }))).toBe(true);
    },
  );

  test("methods without a key, and requests without one where it is not required, pass", async () => {
    let runs = 0;
    const work = () => ({ body: `${++runs}` });
    const locks = openLocks();
    const send = await start(locks, work, { required: false, methods: ["POST", "DELETE"] });
    for (const init of [{ key: null }, { key: null }, { method: "PATCH" }, { method: "GET" }]) {
      expect(replayed(await send(init))).toBe(false);
    }
    expect(runs).toBe(4);
    await send({ method: "DELETE" });
    expect(replayed(await send({ method: "DELETE" }))).toBe(true);
    expect((await send({ key: "a b" })).status).toBe(400);
  });

  test("bad options are refused when the handler is made", async () => {
    for (const [bad, message] of [
      [{ keep: undefined }, /keep is undefined/],
      [{ keep: 0 }, /keep is 0/],
      [{ scope: undefined }, /scope is undefined/],
      [{ wait: "soon" }, /wait is "soon"/],
      [{ ttl: -1 }, /ttl is -1/],
      [{ maxHold: 0 }, /maxHold is 0/],
      [{ methods: ["post"] }, /methods/],
      [{ mostBodyBytes: 1.5 }, /mostBodyBytes is 1.5/],
      [{ keepStatus: 500 }, /keepStatus is 500/],
      [{ scoep: 1 }, /scoep/],
    ] as const) {
      const error = await rejection(start(openLocks(), () => ({}), bad as unknown as Options));
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(error.message).toMatch(message);
    }
  });

  test.each([[undefined], [null], [""], [7]])("a scope of %j is an error", async (scope) => {
    let runs = 0;
    const options = { scope: () => scope } as unknown as Options;
    const send = await start(openLocks(), () => ({ body: `${++runs}` }), options);
    expect([await statusOf(send()), runs]).toEqual([500, 0]);
  });
});

const sendAgain = (send: Send, isKept: boolean): Promise<Response> =>
  send(isKept ? {} : { body: "corrected" });

test("Fetch: the rest of the arguments reach the handler, and the lease is that of the key", async () => {
  const options = { keep: "1h", scope: () => "ann" } as const;
  const handle = idempotentFetch(openLocks(), options, (_request, lease, more: string) =>
    Response.json([more, lease?.name.startsWith("idempotent:http:")]),
  );
  const headers = { "idempotency-key": "k" };
  const response = await handle(new Request("http://service", { method: "POST", headers }), "rest");
  expect(await response.json()).toEqual(["rest", true]);
  expect(refusal(() => idempotentFetch(openLocks(), options, null as never)).message).toMatch(
    /the handler is null/,
  );
});

test("a body that was read before idempotentFetch is an error", async () => {
  const options = { keep: "1h" as const, scope: () => "ann" };
  const handle = idempotentFetch(openLocks(), options, () => new Response());
  const request = new Request("http://service/", {
    method: "POST",
    body: "1",
    headers: keyHeaders({}),
  });
  await request.text();
  const error = await rejection(handle(request));
  expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
  expect(error.message).toMatch(/put idempotentFetch before it/);
});

test("Fetch: a response whose headers are too large to be kept is sent, and then 410", async () => {
  let runs = 0;
  const handle = idempotentFetch(openLocks(), { keep: "1h", scope: () => "ann" }, () => {
    runs++;
    return new Response(new Uint8Array(700_000), { headers: { big: "x".repeat(100_000) } });
  });
  const send = () =>
    handle(new Request("http://a/", { method: "POST", headers: keyHeaders({}), body: "b" }));
  expect((await send()).headers.get("big")?.length).toBe(100_000);
  expect([(await send()).status, runs]).toEqual([410, 1]);
});

test("Fetch: the work goes on when the request's signal aborts, and its response is kept", async () => {
  const begun = new Deferred<void>();
  const end = new Deferred<void>();
  let runs = 0;
  const scope = (): string => "ann";
  const handle = idempotentFetch(openLocks(), { keep: "1h", scope }, async () => {
    begun.resolve();
    await end.promise;
    return new Response(`run ${++runs}`);
  });
  const client = new AbortController();
  const requestOf = (signal?: AbortSignal): Request =>
    new Request("http://service", {
      method: "POST",
      headers: { "idempotency-key": "k" },
      ...(signal && { signal }),
    });
  const first = handle(requestOf(client.signal));
  await begun.promise;
  client.abort();
  expect((await handle(requestOf())).status).toBe(409);
  end.resolve();
  await first;
  expect(await (await handle(requestOf())).text()).toBe("run 1");
});

/** Sends a request over a socket of its own, which the client can cut. */
function sendAndLeave(url: string): () => void {
  const headers = { "idempotency-key": "k", user: "ann" };
  const client = request(url, { method: "POST", headers, agent: false });
  client.on("error", () => {});
  client.end("body");
  return () => client.destroy();
}

/** The ways in which a handler gives its response, when it has `result`. */
const ENDINGS: Record<string, (response: ServerResponse, result: Promise<string>) => unknown> = {
  "by end": async (response, result) => response.end(await result),
  "by callbacks, after its promise": (response, result) => {
    result.then((text) => response.writeHead(200).write(text, () => response.end()));
  },
  "by a pipe that begins before the client leaves": (response, result) => {
    Readable.from(
      (async function* () {
        yield await result;
      })(),
    ).pipe(response);
  },
  "by a pipe that begins afterwards": async (response, result) => {
    Readable.from([await result]).pipe(response);
  },
  "by a pipeline that begins before the client leaves": async (response, result) => {
    const source = async function* () {
      yield await result;
    };
    // It is told in the end that nobody has read the response.
    await pipeline(source, response).catch(() => {});
  },
  "by a pipeline that begins afterwards": async (response, result) => {
    await pipeline([await result], response).catch(() => {});
  },
};

describe("a guard inside an idempotent handler", () => {
  const guardedFetch: FetchForm = async (locks, guard, work) => {
    const options = { keep: "1h" as const, scope: () => "worker" };
    const handle = idempotentFetch(
      locks,
      options,
      guardFetch(guard, async () => new Response(work())),
    );
    return { url: "http://service/", send: (input, init) => handle(new Request(input, init)) };
  };
  const guardedNode: FetchForm = async (locks, guard, work) => {
    const options = { keep: "1h" as const, scope: () => "worker" };
    const handle = idempotentNode(locks, options, async (request, response) => {
      if ((await guardNode(guard, request, response)) !== false) response.end(work());
    });
    return { url: await serve(handle), send: fetch };
  };

  test.each([
    ["guardFetch", guardedFetch],
    ["guardNode", guardedNode],
  ])("%s: a later holder does the work that was refused to a stale one", async (_, start) => {
    const fence = memoryFence();
    await fence.enter(undefined, "hat", { token: 9n, floor: 9n });
    let runs = 0;
    const work = (): string => `run ${++runs}`;
    const { url, send } = await start(openLocks(), { fence, resource: () => "hat" }, work);
    const post = (token: bigint): Promise<Response> =>
      fencedFetch({ token, floor: token }, { fetch: send })(url, {
        method: "POST",
        body: "job 7",
        headers: { "idempotency-key": "job-7" },
      });
    expect(await rejection(post(5n))).toMatchObject({ code: "STALE_TOKEN", highest: 9n });
    expect(await (await post(12n)).text()).toBe("run 1");
    expect(replayed(await post(12n))).toBe(true);
  });
});

test("a guard outside an idempotent handler refuses a stale holder also when there is a response to replay", async () => {
  const fence = memoryFence();
  const charge = idempotentFetch(
    openLocks(),
    { keep: "1h", scope: () => "worker" },
    async (_request, _lease, fenced: Fenced | null) => new Response(String(fenced?.token)),
  );
  const handle = guardFetch({ fence, resource: () => "hat" }, charge);
  const post = (token: bigint): Promise<Response> => {
    const headers = { "idempotency-key": "job-7", "fencing-token": String(token) };
    return handle(new Request("http://service/", { method: "POST", body: "job 7", headers }));
  };
  expect(await (await post(5n)).text()).toBe("5");
  const again = await post(12n);
  expect([replayed(again), await again.text()]).toEqual([true, "5"]);
  expect((await post(5n)).status).toBe(412);
});

test("a body that node:http does not send with its status is not replayed by idempotentFetch either", async () => {
  const locks = openLocks();
  const handle = idempotentNode(locks, nodeOptions({}), (_request, response) => {
    response.writeHead(204).end("ignored");
  });
  expect((await sendTo(await serve(handle))()).status).toBe(204);
  const send = await FORMS["Fetch"]!(locks, () => ({}));
  const again = await send();
  expect([again.status, replayed(again), await again.text()]).toEqual([204, true, ""]);
});

describe("node:http: a client that leaves does not end the work", () => {
  test.each(Object.entries(ENDINGS))("a response %s", async (_, answer) => {
    const begun = new Deferred<ServerResponse>();
    const result = new Deferred<string>();
    let runs = 0;
    let closes = 0;
    const handle = idempotentNode(openLocks(), nodeOptions({}), (_request, response) => {
      runs++;
      response.on("close", () => closes++);
      begun.resolve(response);
      return answer(response, result.promise);
    });
    const left = new Deferred<void>();
    const calls: Promise<void>[] = [];
    const url = await serve((incoming, response) => {
      incoming.socket.once("close", () => left.resolve());
      calls.push(handle(incoming, response));
    });
    const leave = sendAndLeave(url);
    const response = await begun.promise;
    leave();
    await left.promise;
    const during = await sendTo(url)();
    expect([during.status, runs, closes]).toEqual([409, 1, 0]);
    result.resolve("charged");
    await calls[0];
    // Those who listen to the real response learn of it in the end.
    expect([closes, response.destroyed, response.closed]).toEqual([1, true, true]);
    const again = await sendTo(url)();
    expect([again.status, replayed(again), await again.text()]).toEqual([200, true, "charged"]);
    expect(runs).toBe(1);
  });

  test("a failure of the work is reported, and frees the key", async () => {
    const begun = new Deferred<void>();
    const result = new Deferred<string>();
    let runs = 0;
    const handle = idempotentNode(openLocks(), nodeOptions({}), async (_request, response) => {
      if (++runs === 1) begun.resolve();
      response.end(runs === 1 ? await result.promise : "fine");
    });
    const left = new Deferred<void>();
    const errors: unknown[] = [];
    const failed = new Deferred<void>();
    const url = await serve((incoming, response) => {
      incoming.socket.once("close", () => left.resolve());
      return handle(incoming, response, (error) => {
        errors.push(error);
        failed.resolve();
      });
    });
    const leave = sendAndLeave(url);
    await begun.promise;
    leave();
    await left.promise;
    result.reject(new Error("declined"));
    await failed.promise;
    expect(errors).toMatchObject([{ message: "declined" }]);
    expect(await (await sendTo(url)()).text()).toBe("fine");
  });
});

describe("node:http", () => {
  const handled = (handler: Parameters<typeof idempotentNode>[2], options: Options = {}) =>
    idempotentNode(openLocks(), nodeOptions(options), handler);

  test("a client that leaves before its body is complete causes no error, and the key is free", async () => {
    let runs = 0;
    const handle = handled((_request, response) => {
      runs++;
      response.end("fine");
    });
    const arrived = new Deferred<void>();
    const calls: Promise<void>[] = [];
    const url = await serve((incoming, response) => {
      calls.push(handle(incoming, response));
      arrived.resolve();
    });
    const headers = { ...keyHeaders({}), "content-length": "100" };
    const outgoing = request(url, { method: "POST", headers });
    outgoing.on("error", () => {});
    outgoing.write("abc");
    await arrived.promise;
    outgoing.destroy();
    await calls[0];
    expect(runs).toBe(0);
    expect(await (await sendTo(url)()).text()).toBe("fine");
  });

  test("a handler that destroys the response has failed", async () => {
    let runs = 0;
    const handle = handled((_request, response) => {
      if (++runs === 1) response.destroy();
      else response.end("fine");
    });
    const send = sendTo(await serve(handle));
    await expect(send()).rejects.toThrow();
    expect(await (await send()).text()).toBe("fine");
  });

  test("an error after the response is ended does not change the response", async () => {
    const errors: unknown[] = [];
    const handle = handled(async (_request, response) => {
      response.statusCode = 201;
      response.setHeader("own", "1");
      response.end("charged");
      expect([response.headersSent, response.writableEnded]).toEqual([true, true]);
      response.statusCode = 500;
      response.removeHeader("own");
      response.end("more");
      throw new Error("the logger is broken");
    });
    const send = sendTo(
      await serve((request, response) => handle(request, response, (error) => errors.push(error))),
    );
    for (const isReplay of [false, true]) {
      const response = await send();
      expect([response.status, replayed(response)]).toEqual([201, isReplay]);
      expect([response.headers.get("own"), await response.text()]).toEqual(["1", "charged"]);
    }
    expect(errors).toMatchObject([{ message: "the logger is broken" }]);
  });

  test("a status code that can't be sent is an error of the handler, and is not kept", async () => {
    let runs = 0;
    const handle = handled((_request, response) => {
      response.statusCode = ++runs === 1 ? 0 : 200;
      response.end();
    });
    const errors: unknown[] = [];
    const url = await serve((request, response) =>
      handle(request, response, (error) => {
        errors.push(error);
        response.writeHead(500).end();
      }),
    );
    expect((await sendTo(url)()).status).toBe(500);
    expect(errors).toMatchObject([{ name: "RangeError" }]);
    expect((await sendTo(url)()).status).toBe(200);
  });

  test("headers that a middleware sets belong to each response, and those of the handler are kept", async () => {
    let requests = 0;
    const handle = handled((_request, response) => {
      response.writeHead(200, "Charged", ["link", "<a>", "vary", "user", "link", "<b>"]);
      response.end();
    });
    const url = await serve((request, response) => {
      response.setHeader("access-control-allow-origin", "*");
      response.setHeader("request-id", `${++requests}`);
      response.setHeader("vary", "origin");
      return handle(request, response);
    });
    for (const isReplay of [false, true]) {
      const { headers, statusText } = await sendTo(url)();
      expect(headers.get("idempotent-replayed")).toBe(isReplay ? "true" : null);
      expect(statusText).toBe(isReplay ? "OK" : "Charged");
      expect(headers.get("access-control-allow-origin")).toBe("*");
      expect(headers.get("request-id")).toBe(`${requests}`);
      expect([headers.get("vary"), headers.get("link")]).toEqual(["user", "<a>, <b>"]);
    }
  });

  test("what a failed handler has set and written does not reach the client", async () => {
    const handle = handled((_request, response) => {
      response.writeHead(201, { secret: "1", "content-length": "7" });
      response.write("partial");
      throw new Error("declined");
    });
    const url = await serve((request, response) =>
      handle(request, response, (error) => {
        response.statusCode = 500;
        response.end((error as Error).message);
      }),
    );
    const response = await sendTo(url)();
    expect([response.status, response.headers.get("secret")]).toEqual([500, null]);
    expect(await response.text()).toBe("declined");
  });

  test("a parser that was first has read the body: the fingerprint is that of what it made", async () => {
    const bodies: unknown[] = [];
    const handle = handled((request, response, { body }) => {
      bodies.push((request as { body?: unknown }).body, body);
      response.end();
    });
    // As Express with express.json(), below a router.
    const url = await serve(async (request, response) => {
      const chunks = await request.toArray();
      const { url: originalUrl } = request;
      Object.assign(request, { body: JSON.parse(String(Buffer.concat(chunks))), originalUrl });
      request.url = "/";
      request.headers["content-type"] = "application/vnd.shop+json; charset=utf-8";
      return handle(request, response);
    });
    const send = sendTo(url);
    expect((await send({ body: '{"a":1}' })).status).toBe(200);
    expect(replayed(await send({ body: '{ "a": 1 }' }))).toBe(true);
    expect((await send({ body: '{"a":2}' })).status).toBe(422);
    expect((await send({ body: '{"a":1}', path: "/other" })).status).toBe(422);
    expect(bodies).toEqual([{ a: 1 }, null]);
  });

  describe("below middleware of Express", () => {
    type Middleware = (
      request: IncomingMessage,
      response: ServerResponse,
      next: () => void,
    ) => void;
    const readsAll =
      (body: unknown): Middleware =>
      async (request, _response, next) => {
        await request.toArray();
        if (body !== undefined) Object.assign(request, { body });
        next();
      };
    const JSON_TYPE = "application/json";
    const MULTIPART = "multipart/form-data; boundary=x";

    async function serveBelow(middleware: Middleware) {
      let runs = 0;
      const handle = handled((_request, response) => response.end(`run ${++runs}`));
      const app = express();
      app.use(middleware);
      app.post("/charges", handle);
      app.use((error: Error, _1: unknown, response: ServerResponse, _2: unknown) => {
        response.writeHead(500).end(error.message);
      });
      const url = await serve(app);
      return async (type: string, body: string | null) => {
        const headers = { ...keyHeaders({}), "content-type": type };
        const response = await fetch(`${url}/charges`, { method: "POST", headers, body });
        return { status: response.status, text: await response.text() };
      };
    }

    test.each<[string, Middleware, string, string | null, string]>([
      ["express.json()", express.json(), JSON_TYPE, '{"a":1}', '{"a":2}'],
      ["express.json() and an empty object", express.json(), JSON_TYPE, "{}", '{"a":2}'],
      ["express.json() and no body", express.json(), JSON_TYPE, null, '{"a":2}'],
      ["express.json() and another type", express.json(), MULTIPART, "one", "two"],
      ["a form", express.urlencoded(), "application/x-www-form-urlencoded", "a=1", "a=2"],
      ["express.raw()", express.raw({ type: "*/*" }), MULTIPART, "one", "two"],
      ["express.text()", express.text({ type: "*/*" }), "text/plain", "one", "two"],
    ])("%s: another request is refused", async (_, middleware, type, one, two) => {
      const send = await serveBelow(middleware);
      expect(await send(type, one)).toEqual({ status: 200, text: "run 1" });
      expect(await send(type, one)).toEqual({ status: 200, text: "run 1" });
      expect(await send(type, two)).toMatchObject({ status: 422 });
    });

    const toMap = express.json({ reviver: (_: string, value: unknown) => new Map([["a", value]]) });
    test.each<[string, Middleware, string, RegExp]>([
      ["leaves none", readsAll(undefined), JSON_TYPE, /request.body is undefined/],
      ["leaves an empty object", readsAll({}), JSON_TYPE, /less than was sent as "application/],
      [
        "keeps files elsewhere",
        readsAll({ a: "1" }),
        MULTIPART,
        /less than was sent as "multipart/,
      ],
      ["makes objects of a class", toMap, JSON_TYPE, /request.body is a Map/],
    ])(
      "a middleware that reads the body and %s: an error, and no work",
      async (_, middleware, type, message) => {
        const send = await serveBelow(middleware);
        for (const body of ['{"a":1}', '{"a":2}']) {
          const { status, text } = await send(type, body);
          expect(status, text).toBe(500);
          expect(text).toMatch(message);
          expect(text).toMatch(/put idempotentNode before that middleware/);
        }
      },
    );

    test.each([undefined, null, 0, ""])(
      "a handler that rejects with %j has failed",
      async (nothing) => {
        const app = express();
        app.post(
          "/",
          handled(() => Promise.reject(nothing)),
        );
        app.post("/", (_: unknown, response: ServerResponse) => response.end("the next handler"));
        app.use((error: Error, _1: unknown, response: ServerResponse, _2: unknown) => {
          response.writeHead(500).end(error.message);
        });
        const response = await sendTo(await serve(app))();
        expect([response.status, await response.text()]).toEqual([
          500,
          expect.stringContaining("without an error"),
        ]);
      },
    );

    test("an adapter that sets the body of a request and leaves nothing to read", async () => {
      const handle = handled((_request, response) => response.end("fine"));
      const url = await serve((request, response) =>
        handle(Object.assign(request, { body: String(request.headers["sent"]) }), response),
      );
      const send = (sent: string) =>
        fetch(url, { method: "POST", headers: { ...keyHeaders({}), sent } });
      expect((await send("one")).status).toBe(200);
      expect(replayed(await send("one"))).toBe(true);
      expect((await send("two")).status).toBe(422);
    });
  });

  test("a parser that left the body unread does not make all bodies the same", async () => {
    const handle = handled((_request, response, { body }) => response.end(body));
    // As express.json() of Express 4 does with a body that is not JSON.
    const url = await serve((request, response) =>
      handle(Object.assign(request, { body: {} }), response),
    );
    const send = sendTo(url);
    expect(await (await send({ body: "one" })).text()).toBe("one");
    expect(replayed(await send({ body: "one" }))).toBe(true);
    expect((await send({ body: "two" })).status).toBe(422);
  });

  test("a handler that never ends its response keeps the key until maxHold", async () => {
    let runs = 0;
    const signal = new Deferred<AbortSignal>();
    const handle = handled(
      (_request, response, { lease }) => {
        if (++runs > 1) response.end("second");
        else signal.resolve(lease!.signal);
      },
      { maxHold: 100, wait: "20s", ttl: 500 },
    );
    const url = await serve(handle);
    sendAndLeave(url);
    await signal.promise;
    expect(await (await sendTo(url)()).text()).toBe("second");
    expect((await signal.promise).reason).toMatchObject({ reason: "max-hold" });
  });
});
