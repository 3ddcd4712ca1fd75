import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import type { ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
// @ts-expect-error It has no types of its own.
import express from "express";
import { Hono } from "hono";
import { expect, onTestFinished, test } from "vitest";
import { HoldfastError, StaleTokenError, StoreUnavailableError } from "../../src/core/errors.js";
import {
  fencedFetch,
  fencingToken,
  guardFetch,
  guardNode,
  parseFencingToken,
  refuse,
} from "../../src/fence/http.js";
import { memoryFence } from "../../src/fence/memory.js";
import { createLocks } from "../../src/index.js";
import { idempotentFetch, limitFetch } from "../../src/lockfree/index.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { serve } from "../support/http-server.js";

const KEY = "sixteen bytes or more";
const by = (token: bigint) => ({ token, floor: token });
const request = (token?: string): Request =>
  new Request("http://service/stock", {
    method: "PUT",
    ...(token === undefined ? {} : { headers: { "Fencing-Token": token } }),
  });

/** A handler that does nothing but tell what it was given. */
function guarded(more: object = {}) {
  const fence = memoryFence();
  const guard = { fence, resource: () => "stock", ...more };
  const handler = guardFetch(guard, async (_request, fenced) => {
    return new Response(fenced === null ? "none" : String(fenced.token));
  });
  return { fence, handler };
}

test("a handler gets the numbers of a holder, and a stale one is refused with 412 and a problem document", async () => {
  const { handler, fence } = guarded();
  expect(await (await handler(request("7"))).text()).toBe("7");
  expect(await fence.highest(undefined, "stock")).toBe(7n);
  const refused = await handler(request("6"));
  expect(refused.status).toBe(412);
  expect(refused.headers.get("content-type")).toBe("application/problem+json");
  expect(await refused.json()).toEqual({
    type: "urn:holdfast:problem:stale-token",
    title: "The fencing token is stale",
    status: 412,
    detail: expect.stringContaining('"stock"'),
    resource: "stock",
    token: "6",
    highest: "7",
  });
});

test.each([
  [undefined, 428],
  ["", 400],
  ["seven", 400],
  ["-7", 400],
  ["7.5", 400],
  ["7;floor=8", 400],
  ["7;ceiling=8", 400],
  ["7, 8", 400],
  ["99999999999999999999", 400],
  ["9223372036854775808", 400],
])("the header %j is answered with %i, and the handler does not run", async (token, status) => {
  const { handler, fence } = guarded();
  const refused = await handler(request(token));
  expect(refused.status).toBe(status);
  expect(refused.headers.get("content-type")).toBe("application/problem+json");
  expect(await fence.highest(undefined, "stock")).toBe(0n);
});

test("optional lets requests without a token pass, and no others", async () => {
  const { handler } = guarded({ optional: true });
  expect(await (await handler(request())).text()).toBe("none");
  expect((await handler(request("x"))).status).toBe(400);
});

test("a StaleTokenError of the handler's own transaction is a 412, an outage a 503, another error the caller's", async () => {
  const fence = memoryFence();
  const failing = (error: Error) =>
    guardFetch({ fence, resource: () => "stock" }, async () => {
      throw error;
    })(request("7"));
  expect((await failing(new StaleTokenError("row", 7n, 8n))).status).toBe(412);
  const down = await failing(new StoreUnavailableError("db secret.host is down"));
  // The reply to a commit may be lost: to try again could do the work twice.
  expect([down.status, down.headers.get("retry-after")]).toEqual([503, null]);
  expect(await down.text()).toMatch(/^(?!.*secret.host)(?!.*nothing was done).*not known/);
  await expect(failing(new Error("own"))).rejects.toThrow("own");
});

test("with a key, only a signed sequencer for the right lock passes", async () => {
  const locks = createLocks(memoryStore());
  onTestFinished(() => locks.close());
  const { handler } = guarded({ key: KEY });
  const [right, wrong] = [await locks.acquire("stock"), await locks.acquire("other")];
  expect((await handler(request(right.sequencer({ key: KEY })))).status).toBe(200);
  expect((await handler(request(right.sequencer()))).status).toBe(400);
  expect((await handler(request("7"))).status).toBe(400);
  expect((await handler(request(wrong.sequencer({ key: KEY })))).status).toBe(403);
});

test("the middleware of docs/fences.md passes a holder on, refuses a stale one, and hands over other errors", async () => {
  const page = readFileSync(new URL("../../docs/fences.md", import.meta.url), "utf8");
  const [, code] = /^### Express$.*?^```js\n(.*?)^```/ms.exec(page)!;
  const file = join(mkdtempSync(join(tmpdir(), "holdfast-http-")), "middleware.mjs");
  onTestFinished(() => rmSync(dirname(file), { recursive: true }));
  const ours = new URL("../../src/fence/http.ts", import.meta.url).href;
  writeFileSync(file, code!.replace('"holdfast/fence/http"', JSON.stringify(ours)));
  const { fenced } = await import(file);
  let resource: () => string = () => "hat";
  const middleware = fenced({ fence: memoryFence(), resource: () => resource() });
  const app = express();
  app.use("/hat", middleware, (req: { fenced: { token: bigint } }, res: ServerResponse) => {
    res.end(String(req.fenced.token));
  });
  app.use((error: Error, _req: unknown, res: ServerResponse, _next: unknown) => {
    res.writeHead(500).end(error.message);
  });
  const url = `${await serve(app)}/hat`;
  const send = async (token: string): Promise<[number, string]> => {
    const reply = await fetch(url, { headers: { "Fencing-Token": token } });
    return [reply.status, await reply.text()];
  };
  expect(await send("7")).toEqual([200, "7"]);
  expect(await send("6")).toEqual([412, expect.stringContaining("stale-token")]);
  resource = () => {
    throw new Error("a bug");
  };
  expect(await send("8")).toEqual([500, "a bug"]);
});

test("fencedFetch sends the token, keeps headers and aborts with the lease", async () => {
  const locks = createLocks(memoryStore(), { ttl: 600 });
  onTestFinished(() => locks.close());
  const lease = await locks.acquire("stock");
  const seen: (string | undefined)[] = [];
  let arrived = (): void => {};
  const url = await serve((incoming, response) => {
    seen.push(incoming.headers["fencing-token"] as string, incoming.headers["x-own"] as string);
    if (incoming.url === "/hang") arrived();
    else response.end("fine");
  });
  const send = fencedFetch(lease);
  const reply = await send(url, { headers: { "x-own": "1" } });
  expect(await reply.text()).toBe("fine");
  expect(seen).toEqual([String(lease.token), "1"]);
  const hanging = new Promise<void>((resolve) => {
    arrived = resolve;
  });
  const pending = send(`${url}/hang`);
  await hanging;
  await locks.forceRelease("stock", { why: "test" });
  await expect(pending).rejects.toMatchObject({ code: "LEASE_LOST" });
  await expect(send(url)).rejects.toMatchObject({ code: "LEASE_LOST" });
});

test("fencedFetch for one of several names sends its token, and ends with the lease of any of them", async () => {
  const locks = createLocks(memoryStore(), { ttl: 600 });
  onTestFinished(() => locks.close());
  const all = await locks.acquireAll(["hat", "coat"]);
  let arrived = (_token: unknown): void => {};
  const hanging = new Promise<unknown>((resolve) => {
    arrived = resolve;
  });
  const url = await serve((incoming) => arrived(incoming.headers["fencing-token"]));
  const send = fencedFetch(all.of("hat"));
  const pending = send(url);
  expect(await hanging).toBe(String(all.tokens.get("hat")));
  await locks.forceRelease("coat", { why: "test" });
  await expect(pending).rejects.toMatchObject({ code: "LEASE_LOST" });
  await expect(send(url)).rejects.toMatchObject({ code: "LEASE_LOST" });
  expect(structuredClone(all.of("hat"))).toEqual(all.of("hat"));
});

test("fencedFetch rejects with StaleTokenError only for a refusal by a fence", async () => {
  const fence = memoryFence();
  await fence.enter(undefined, "stock", by(9n));
  const url = await serve(async (incoming, response) => {
    if (incoming.url === "/other") response.writeHead(412).end("an ETag does not match");
    else await guardNode({ fence, resource: () => "stock" }, incoming, response);
  });
  const send = fencedFetch(by(8n));
  await expect(send(`${url}/stock`)).rejects.toMatchObject({
    code: "STALE_TOKEN",
    resource: "stock",
    token: 8n,
    highest: 9n,
  });
  expect((await send(`${url}/other`)).status).toBe(412);
});

test("the header has a floor only where it differs", () => {
  expect(fencingToken(by(7n))).toBe("7");
  expect(fencingToken({ token: 7n, floor: 5n })).toBe("7;floor=5");
  for (const lease of [by(0n), by(2n ** 63n - 1n), { token: 7n, floor: 5n }])
    expect(parseFencingToken(fencingToken(lease))).toEqual(lease);
});

test.each([[{}], [{ fence: memoryFence() }], [{ resource: () => "x" }], [null]])(
  "a guard without what it needs is refused at once: %j",
  (guard) => {
    expect(() => guardFetch(guard as never, () => new Response())).toThrow(
      expect.objectContaining({ code: "INVALID_ARGUMENT" }),
    );
  },
);

test("a fence that can't be asked is a 503 that may be tried again, also by another copy of the library", async () => {
  const copy = Object.assign(new StoreUnavailableError("down"), {});
  Object.setPrototypeOf(copy, HoldfastError.prototype);
  for (const error of [new StoreUnavailableError("down"), copy]) {
    const guard = () => Promise.reject(error);
    const { handler } = guarded({ fence: { guard } });
    const down = await handler(request("7"));
    expect([down.status, down.headers.get("retry-after")]).toEqual([503, "1"]);
    expect(await down.text()).toContain("nothing was done");
  }
});

test("a resource that no fence can have is the sender's mistake", async () => {
  for (const resource of ["", "x".repeat(256), "a\u0000"]) {
    const { handler } = guarded({ resource: () => resource });
    expect((await handler(request("7"))).status).toBe(400);
  }
});

test.each([[undefined], [""], ["short"], [null]])(
  "a guard whose key is %j is refused at once: it would let unsigned tokens pass",
  (key) => {
    expect(() => guarded({ key })).toThrow(expect.objectContaining({ code: "INVALID_ARGUMENT" }));
  },
);

test("refuse answers nothing once the response has begun", async () => {
  let answered: boolean | null = null;
  const url = await serve((_request, response) => {
    response.writeHead(200).write("half");
    answered = refuse(response, new StaleTokenError("stock", 1n, 2n));
    response.end();
  });
  expect(await (await fetch(url)).text()).toBe("half");
  expect(answered).toBe(false);
});

test("a holder that has not entered is told so, not that another has", async () => {
  const fence = memoryFence();
  const handler = guardFetch({ fence, resource: () => "stock" }, async (_request, fenced) => {
    await fence.guard(undefined, "other", fenced!, { strict: true });
    return new Response();
  });
  expect(await (await handler(request("7"))).json()).toMatchObject({
    status: 412,
    detail: expect.stringContaining("has not entered"),
  });
});

test("fencedFetch knows a refusal whatever the case of its type, and reads no endless one", async () => {
  const problem = JSON.stringify({ type: "urn:holdfast:problem:stale-token", highest: "9" });
  const url = await serve((incoming, response) => {
    response.writeHead(412, { "Content-Type": "Application/Problem+JSON; charset=utf-8" });
    if (incoming.url === "/endless") response.write("x".repeat(20_000));
    else response.end(problem);
  });
  const send = fencedFetch(by(8n));
  await expect(send(url)).rejects.toMatchObject({ code: "STALE_TOKEN", highest: 9n });
  const reply = await send(`${url}/endless`);
  expect(reply.status).toBe(412);
  await reply.body!.cancel();
});

test("fencedFetch takes a Request with its body, headers and signal", async () => {
  const seen: unknown[] = [];
  const url = await serve(async (incoming, response) => {
    let body = "";
    for await (const part of incoming) body += part;
    seen.push(incoming.method, incoming.headers["x-own"], incoming.headers["fencing-token"], body);
    response.end();
  });
  const stream = new Blob(["6"]).stream();
  const headers = { "x-own": "1" };
  const sent = new Request(url, { method: "PUT", headers, body: stream, duplex: "half" } as object);
  await fencedFetch(by(8n))(sent);
  expect(seen).toEqual(["PUT", "1", "8", "6"]);
  const aborted = new Request(url, { signal: AbortSignal.abort(new Error("mine")) });
  await expect(fencedFetch(by(8n))(aborted)).rejects.toThrow("mine");
});

test("caches are told to pass on requests with a token, and to keep no reply to them", async () => {
  const guard = { fence: memoryFence(), resource: () => "stock", optional: true };
  const asked: unknown[] = [];
  const url = await serve(async (incoming, response) => {
    asked.push(incoming.headers["cache-control"]);
    const fenced = await guardNode(guard, incoming, response);
    if (fenced === false) return;
    if (incoming.url === "/own") response.setHeader("cache-control", "private");
    response.end();
  });
  const told = async (reply: Response | Promise<Response>): Promise<unknown> => {
    const { headers } = await reply;
    return [headers.get("cache-control"), headers.get("vary")];
  };
  expect(await told(fencedFetch(by(8n))(url))).toEqual(["no-store", null]);
  expect(await told(fetch(url, { headers: { "fencing-token": "7" } }))).toEqual(["no-store", null]);
  const own = { headers: { "cache-control": "max-age=0" } };
  expect(await told(fencedFetch(by(8n))(`${url}/own`, own))).toEqual(["private", null]);
  expect(asked.splice(0)).toEqual(["no-cache", undefined, "max-age=0"]);
  expect(await told(fetch(url))).toEqual([null, "fencing-token"]);

  const replies = [
    () => new Response("6", { headers: { vary: "accept" } }),
    () => Response.redirect(url), // Its headers can't be changed.
    () => fetch(url),
  ];
  const handler = guardFetch(guard, (incoming) => replies[Number(incoming.url.slice(-1))]!());
  const ask = (number: number, token?: string) =>
    handler(
      new Request(`http://service/${number}`, token ? { headers: { "fencing-token": token } } : {}),
    );
  expect(await told(ask(0, "8"))).toEqual(["no-store", "accept"]);
  expect(await told(ask(0))).toEqual([null, "accept, fencing-token"]);
  expect(await told(ask(0, "7"))).toEqual(["no-store", null]);
  expect(await told(ask(1, "8"))).toEqual(["no-store", null]);
  expect(await told(ask(2, "8"))).toEqual(["no-store", "fencing-token"]);
});

test("a sequencer does not follow a redirect to another server, unless you say so", async () => {
  const seen: unknown[] = [];
  const other = await serve((incoming, response) => {
    seen.push(incoming.headers["fencing-token"]);
    response.end();
  });
  const url = await serve((_request, response) => {
    response.writeHead(307, { location: other }).end();
  });
  const send = fencedFetch(by(8n), { sequencer: "hf1.A.B" });
  await expect(send(url)).rejects.toThrow(TypeError);
  // As a function passes on an option that it was not given.
  await expect(send(url, { redirect: undefined } as object)).rejects.toThrow(TypeError);
  await expect(send(new Request(url), { redirect: undefined } as object)).rejects.toThrow(
    TypeError,
  );
  expect(seen).toEqual([]);
  await fencedFetch(by(8n), { sequencer: "hf1.A.B" })(url, { redirect: "follow" });
  await fencedFetch(by(8n))(url);
  expect(seen).toEqual(["hf1.A.B", "8"]);
});

test("fencedFetch replaces a token of the caller, obeys its signal, and leaves other problems alone", async () => {
  const seen: unknown[] = [];
  const url = await serve((incoming, response) => {
    seen.push(incoming.headers["fencing-token"]);
    response.writeHead(412, { "content-type": "application/problem+json" });
    response.end(JSON.stringify({ type: "about:blank", highest: "9" }));
  });
  const send = fencedFetch(by(8n));
  expect((await send(url, { headers: { "Fencing-Token": "99" } })).status).toBe(412);
  const signal = AbortSignal.abort(new Error("mine"));
  await expect(send(url, { signal })).rejects.toThrow("mine");
  expect(seen).toEqual(["8"]);
});

test("fencedFetch takes an option that is undefined for one that was left out", async () => {
  const seen: unknown[] = [];
  const own = async (_input: unknown, init: RequestInit = {}): Promise<Response> => {
    seen.push([init.cache, init.redirect]);
    return new Response();
  };
  const undefinedOptions = { cache: undefined, redirect: undefined } as object;
  await fencedFetch(by(8n), { fetch: own as typeof fetch })("http://service/", undefinedOptions);
  const sequencer = { fetch: own as typeof fetch, sequencer: "hf1.A.B" };
  await fencedFetch(by(8n), sequencer)("http://service/", undefinedOptions);
  await fencedFetch(by(8n), sequencer)("http://service/", { cache: "reload", redirect: "manual" });
  expect(seen).toEqual([
    ["no-store", undefined],
    ["no-store", "error"],
    ["reload", "manual"],
  ]);
});

test("fencedFetch sends nothing for a lease that is over by the clock, though its signal has not fired", async () => {
  const over = {
    ...by(8n),
    assertHeld(): void {
      throw new Error("over");
    },
  };
  const send = fencedFetch(over, { fetch: () => Promise.resolve(new Response()) });
  await expect(send("http://service/")).rejects.toThrow("over");
});

test("handlers in the style of Fetch fit frameworks that pass a request, one with more behind it, or a context", async () => {
  const locks = createLocks(memoryStore());
  onTestFinished(() => locks.close());
  const seen: unknown[][] = [];
  const see = (...rest: unknown[]): Response => {
    seen.push(rest);
    return new Response("seen");
  };
  const guard = { fence: memoryFence(), resource: () => "stock" };
  const limit = { limit: 60, per: 60_000, key: () => "ann" };
  for (const [i, handler] of [
    guardFetch(guard, (_request, _fenced, ...rest: unknown[]) => see(...rest)),
    idempotentFetch(locks, { keep: "1m", scope: () => "ann" }, (_request, _lease, ...rest) =>
      see(...rest),
    ),
    limitFetch(locks, limit, (_request, ...rest: unknown[]) => see(...rest)),
  ].entries()) {
    const sent = (key: string): Request => {
      const headers = { "Fencing-Token": "7", "Idempotency-Key": `"${key}${i}"` };
      return new Request("http://service/stock", { method: "PUT", headers });
    };
    const next = { params: Promise.resolve({ id: "7" }) };
    const hono = new Hono().put("/stock", (c) => handler(c.req.raw));
    for (const reply of [handler(sent("next"), next), hono.request(sent("hono"))])
      expect(await (await reply).text()).toBe("seen");
    expect(seen.splice(0)).toEqual([[next], []]);
  }
});
