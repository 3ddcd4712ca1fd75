import type { IncomingMessage, ServerResponse } from "node:http";
// @ts-expect-error: it has no types
import express from "express";
import { Hono } from "hono";
import { expect, onTestFinished, test } from "vitest";
import { createLocks, type Locks, type LocksOptions } from "../../src/index.js";
import { limitFetch, limitNode, type RateLimitHttpOptions } from "../../src/lockfree/index.js";
import { createLocksOn } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import { refusal, rejection } from "../core/helpers.js";
import { serve } from "../support/http-server.js";

const NUMBERS = { limit: 6, per: "1m", burst: 2 } as const;
const byUser = (request: Request): string => request.headers.get("user") ?? "nobody";
const requestOf = (user: string): Request => new Request("http://service/", { headers: { user } });

const headersOf = ({ headers }: Response) => ({
  policy: headers.get("ratelimit-policy"),
  limit: headers.get("ratelimit"),
  retryAfter: headers.get("retry-after"),
});

function stageLocks(): { clock: VirtualClock; locks: Locks } {
  const clock = new VirtualClock();
  const locks = createLocksOn({ clock }, memoryStore({ clock: clock.forStore() }));
  onTestFinished(() => locks.close());
  return { clock, locks };
}

/** A store that is there and does not take from its meters. */
function brokenLocks(options: LocksOptions = {}): Locks {
  const store = memoryStore();
  const take = () => Promise.reject(new Error("connection refused"));
  const locks = createLocks(Object.assign(Object.create(store), { records: { take } }), options);
  onTestFinished(() => locks.close());
  return locks;
}

test("a handler runs while there are units, and each response has the headers", async () => {
  const { clock, locks } = stageLocks();
  let runs = 0;
  const handler = limitFetch(locks, { ...NUMBERS, key: byUser }, async (_request, more: string) => {
    runs++;
    return new Response(more, { status: 201, headers: { own: "kept" } });
  });
  const first = await handler(requestOf("ann"), "rest");
  expect([first.status, first.headers.get("own"), await first.text()]).toEqual([
    201,
    "kept",
    "rest",
  ]);
  const policy = '"default";q=6;w=60';
  expect(headersOf(first)).toEqual({ policy, limit: '"default";r=1;t=10', retryAfter: null });
  await handler(requestOf("ann"), "rest");
  await clock.advance(2_500);
  const refused = await handler(requestOf("ann"), "rest");
  expect(runs).toBe(2);
  expect(refused.status).toBe(429);
  expect(refused.headers.get("content-type")).toBe("application/problem+json");
  // 7.5 s, in whole seconds: a client that waits for so long is not refused again.
  expect(headersOf(refused)).toEqual({ policy, limit: '"default";r=0;t=18', retryAfter: "8" });
  expect(await refused.json()).toMatchObject({ status: 429, "violated-policies": ["default"] });
  expect((await handler(requestOf("bob"), "rest")).status).toBe(201);
  await clock.advance(8_000);
  expect((await handler(requestOf("ann"), "rest")).status).toBe(201);
});

test("a request takes as many units as it is told, and policies count apart", async () => {
  const { locks } = stageLocks();
  const fine = () => new Response("fine");
  const numbers = { limit: 5, per: "1h", key: byUser } as const;
  const writes = limitFetch(locks, { ...numbers, policy: "writes", units: () => 4 }, fine);
  const reads = limitFetch(locks, { ...numbers, policy: "reads" }, fine);
  expect(headersOf(await writes(requestOf("ann"))).limit).toMatch(/^"writes";r=1;t=\d+$/);
  expect((await writes(requestOf("ann"))).status).toBe(429);
  expect(headersOf(await reads(requestOf("ann"))).limit).toMatch(/^"reads";r=4;/);
});

test("a policy has one set of numbers, for all handlers of the same locks", async () => {
  const { locks } = stageLocks();
  const fine = () => new Response("fine");
  const options = { limit: 1_000, per: "1m", key: byUser } as const;
  limitFetch(locks, options, fine);
  limitNode(locks, { ...options, per: 60_000, burst: 1_000, key: byHeader }); // The same numbers.
  for (const make of [
    () => limitFetch(locks, { ...options, limit: 5 }, fine),
    () => limitNode(locks, { limit: 1_000, per: "1m", burst: 5, key: byHeader }),
  ]) {
    const error = refusal(make);
    expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
    expect(error.message).toMatch(
      /policy "default" has limit 1000, per 60000 ms and burst 1000 already.*limited by both.*a policy of its own.*a new one/,
    );
  }
  limitFetch(locks, { ...options, limit: 5, policy: "login" }, fine);
  limitFetch(stageLocks().locks, { ...options, limit: 5 }, fine);
});

test("a reload with other numbers needs a new policy, which begins to count anew", async () => {
  const { locks } = stageLocks();
  const load = (limit: number) =>
    limitFetch(locks, { limit, per: "1h", policy: `api-${limit}`, key: byUser }, () => {
      return new Response("fine");
    });
  for (const limit of [9, 5, 9]) await load(limit)(requestOf("ann"));
  expect(headersOf(await load(5)(requestOf("ann"))).limit).toMatch(/^"api-5";r=3;/);
});

test("a limit inside another one adds its own headers", async () => {
  const { locks } = stageLocks();
  const fine = () => new Response("fine");
  const inner = limitFetch(locks, { limit: 9, per: "1h", key: byUser, policy: "user" }, fine);
  const key = () => "all";
  const outer = limitFetch(locks, { limit: 5, per: "1h", key, policy: "all" }, inner);
  expect(headersOf(await outer(requestOf("ann")))).toEqual({
    policy: '"user";q=9;w=3600, "all";q=5;w=3600',
    limit: '"user";r=8;t=400, "all";r=4;t=720',
    retryAfter: null,
  });
  const admitAll = limitNode(locks, { limit: 5, per: "1h", key, policy: "node" });
  const admitUser = limitNode(locks, { limit: 9, per: "1h", key, policy: "user of node" });
  const url = await serve(async (request, response) => {
    if ((await admitAll(request, response)) && (await admitUser(request, response))) response.end();
  });
  expect(headersOf(await fetch(url)).limit).toBe('"node";r=4;t=720, "user of node";r=8;t=400');
});

test("an outage is 503, or lets the request through without headers, by choice", async () => {
  const warnings: unknown[] = [];
  const logger = { debug() {}, info() {}, warn: (...args: unknown[]) => warnings.push(args) };
  const locks = brokenLocks({ logger });
  const handlerOf = (onUnavailable: "throw" | "allow") =>
    limitFetch(locks, { ...NUMBERS, key: byUser, onUnavailable }, () => new Response("fine"));
  const refused = await handlerOf("throw")(requestOf("ann"));
  expect([refused.status, refused.headers.get("retry-after")]).toEqual([503, "1"]);
  expect(await refused.text()).not.toContain("connection refused");
  const message = expect.stringMatching(/policy "default" got 503: .*connection refused/);
  expect(warnings).toMatchObject([[message, { error: { code: "STORE_UNAVAILABLE" } }]]);
  const allowed = await handlerOf("allow")(requestOf("ann"));
  expect([allowed.status, headersOf(allowed).limit]).toEqual([200, null]);
});

test("errors of the handler and of the key are the caller's", async () => {
  const { locks } = stageLocks();
  const fail = () => {
    throw new Error("own");
  };
  const handler = limitFetch(locks, { ...NUMBERS, key: byUser }, fail);
  expect((await rejection(handler(requestOf("ann")))).message).toBe("own");
  const keyed = limitFetch(locks, { ...NUMBERS, key: fail }, () => new Response());
  expect((await rejection(keyed(requestOf("ann")))).message).toBe("own");
});

test("a key or a number of units that is none says so", async () => {
  const { locks } = stageLocks();
  const answer = async (bad: object) => {
    const options = { ...NUMBERS, key: byUser, ...bad } as RateLimitHttpOptions<Request>;
    return rejection(limitFetch(locks, options, () => new Response())(requestOf("ann")));
  };
  for (const [bad, message] of [
    [{ key: () => undefined }, /key returned undefined; it must return a string/],
    [{ key: async () => 7 }, /key returned 7/],
    [{ units: () => 3 }, /units is 3.*from 0 to 2/],
    [{ units: async () => "1" }, /units is "1"/],
  ] as const) {
    const error = await answer(bad);
    expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
    expect(error.message).toMatch(message);
  }
});

test("the name of a policy may have quotes", async () => {
  const { locks } = stageLocks();
  const options = { ...NUMBERS, key: byUser, policy: 'a "b" \\c' };
  const response = await limitFetch(locks, options, () => new Response())(requestOf("ann"));
  expect(headersOf(response).limit).toBe('"a \\"b\\" \\\\c";r=1;t=10');
});

test("bad options are refused when the handler is made", () => {
  const { locks } = stageLocks();
  for (const [bad, message] of [
    [{ limit: 0 }, /limit is 0/],
    [{ key: "ann" }, /key is "ann"/],
    [{ units: 3 }, /units is 3/],
    [{ policy: "" }, /policy is ""/],
    [{ policy: "größe" }, /policy is "größe".*ASCII/],
    [{ policy: "two\nlines" }, /policy is/],
    [{ policy: null }, /policy is null/],
    [{ brust: 1 }, /brust/],
  ] as const) {
    const options = { ...NUMBERS, key: byUser, ...bad } as RateLimitHttpOptions<Request>;
    const error = refusal(() => limitFetch(locks, options, () => new Response()));
    expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
    expect(error.message).toMatch(message);
  }
});

const byHeader = ({ headers }: IncomingMessage): string => String(headers["user"]);

test("node:http gets the same headers and refusals", async () => {
  const { locks } = stageLocks();
  const admit = limitNode(locks, { ...NUMBERS, burst: 1, key: byHeader });
  const url = await serve(async (request, response) => {
    if (await admit(request, response)) response.end("fine");
  });
  const first = await fetch(url, { headers: { user: "ann" } });
  expect([first.status, await first.text()]).toEqual([200, "fine"]);
  expect(headersOf(first).limit).toBe('"default";r=0;t=10');
  const refused = await fetch(url, { headers: { user: "ann" } });
  expect(refused.status).toBe(429);
  expect(headersOf(refused)).toEqual({
    policy: '"default";q=6;w=60',
    limit: '"default";r=0;t=10',
    retryAfter: "10",
  });
  expect(await refused.json()).toMatchObject({ status: 429 });
});

test("Express goes on only for admitted requests, also in an outage", async () => {
  const statuses: number[] = [];
  let runs = 0;
  const serveWith = (locks: Locks, onUnavailable: "throw" | "allow") => {
    const admit = limitNode(locks, { ...NUMBERS, burst: 1, key: byHeader, onUnavailable });
    const app = express();
    app.use(async (request: IncomingMessage, response: ServerResponse, next: () => void) => {
      if (await admit(request, response)) next();
    });
    app.get("/", (_: IncomingMessage, response: ServerResponse) => {
      runs++;
      response.end("fine");
    });
    return serve(app);
  };
  const url = await serveWith(stageLocks().locks, "throw");
  for (let i = 0; i < 2; i++) {
    const response = await fetch(url, { headers: { user: "ann" } });
    statuses.push(response.status);
    expect(headersOf(response).limit).toBe('"default";r=0;t=10');
  }
  for (const onUnavailable of ["throw", "allow"] as const) {
    statuses.push((await fetch(await serveWith(brokenLocks(), onUnavailable))).status);
  }
  expect([statuses, runs]).toEqual([[200, 429, 503, 200], 2]);
});

test("a handler of Hono is limited", async () => {
  let runs = 0;
  const { locks } = stageLocks();
  const limited = limitFetch(locks, { ...NUMBERS, burst: 1, key: byUser }, () => {
    runs++;
    return new Response("fine");
  });
  const app = new Hono().get("/", (c) => limited(c.req.raw));
  const statuses: number[] = [];
  for (let i = 0; i < 2; i++) {
    const response = await app.request("/", { headers: { user: "ann" } });
    statuses.push(response.status);
    expect(headersOf(response).limit).toBe('"default";r=0;t=10');
  }
  expect([statuses, runs]).toEqual([[200, 429], 1]);
});
