import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { examineStore } from "../../../src/examine.js";
import { connect } from "../../../src/index.js";
import { judgeClocks } from "../../../src/stores/quorum/doctor/clocks.js";
import type { NodeReport } from "../../../src/stores/quorum/doctor/node.js";
import { NODE_RIGHTS } from "../../../src/stores/quorum/doctor/rights.js";
import { MARKER } from "../../../src/stores/quorum/keys.js";
import { FORMAT, SCRIPTS } from "../../../src/stores/quorum/scripts.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { rejection } from "../../core/helpers.js";
import { ofLevel, one } from "../../support/findings.js";
import { describeWith } from "../../support/needs.js";
import { hasRecord, redlockUrl } from "../../support/quorum.js";
import { until } from "../../support/worker.js";

test("the doctor tries every command of the scripts", () => {
  const code = Object.values(SCRIPTS)
    .map((script) => script.code)
    .join("\n");
  const commands = new Set(
    [...code.matchAll(/redis\.p?call\(\s*'(\w+)'/g)].map(([, name]) => name!),
  );
  expect(commands.size).toBeGreaterThan(5);
  expect(Object.keys(NODE_RIGHTS.commands)).toEqual(expect.arrayContaining([...commands]));
});

describe("the clocks of the nodes", () => {
  const judge = (aheadMs: readonly number[], maxTtlMs = 60_000): ReturnType<typeof judgeClocks> =>
    judgeClocks(
      aheadMs.map((ahead, i) => {
        const clock = { aheadMs: ahead, unsureMs: 2 };
        return { where: `redis://${"abc"[i]}`, clock } as unknown as NodeReport;
      }),
      maxTtlMs,
    );

  test("may all be far from this machine's", () => {
    expect(judge([-1e9, -1e9 + 5, -1e9 - 5])).toMatchObject({ level: "ok" });
  });

  test.each<[readonly number[], number, RegExp, RegExp | null]>([
    [[0, 0, 1_500], 60_000, /redis:\/\/c is 1\.5 s ahead of the median/, /quarter|half/],
    [[0, 0, -1_500], 60_000, /redis:\/\/c is 1\.5 s behind the median/, /quarter|half/],
    [[0, 16_000, 0], 60_000, /beyond a quarter of maxTtl \(15 s\)/, /half/],
    [[0, 31_000, 0], 60_000, /beyond half of maxTtl \(30 s\)/, null],
    [[0, 300, 0], 1_000, /beyond a quarter of maxTtl \(0\.25 s\)/, /half/],
  ])("%j with maxTtl %d", (aheadMs, maxTtlMs, what, not) => {
    const finding = judge(aheadMs, maxTtlMs);
    expect(finding).toMatchObject({ level: "danger", what: expect.stringMatching(what) });
    if (not !== null) expect(finding.what).not.toMatch(not);
  });

  test("are unknown if one can't be read", () => {
    const reports = [{ where: "a", clock: "TIME is refused: NOPERM" }] as unknown as NodeReport[];
    expect(judgeClocks(reports, 60_000)).toMatchObject({
      level: "unknown",
      what: expect.stringContaining("NOPERM"),
    });
  });
});

describeWith(["redis"], "the doctor on a quorum", () => {
  let lab: Lab;
  let servers: RedisServer[];
  let url: string;
  beforeAll(async () => {
    lab = await Lab.open();
    servers = await start(3);
    url = redlockUrl(servers);
  });
  afterAll(() => lab.close());

  const start = (count: number): Promise<RedisServer[]> =>
    Promise.all(Array.from({ length: count }, () => lab.redis({ persistence: "always" })));

  /** Servers that are in service. */
  async function used(count = 3): Promise<RedisServer[]> {
    const own = await start(count);
    await (await connect(redlockUrl(own))).close();
    return own;
  }

  test("says of a new quorum that it is new, and later finds nothing to complain about", async () => {
    const first = await examineStore(url);
    expect(first.filter(({ level }) => level !== "ok")).toEqual([
      expect.objectContaining({ about: "nodes", level: "note" }),
    ]);
    expect(one(first, "nodes").what).toMatch(/^none of the 3 has any data of a quorum: it is new/);
    const findings = await examineStore(url);
    expect(findings.filter(({ level }) => level !== "ok")).toEqual([]);
    expect(one(findings, "nodes").what).toBe("all 3 answer and vote");
    const { what } = one(findings, "servers");
    expect(what).toMatch(/^3 different servers, by their run ids: /);
    for (const server of servers) {
      const [, runId] = /run_id:(\w+)/.exec(await server.cli("info", "server"))!;
      expect(what).toContain(`${server.url} ${runId}`);
    }
    expect([...new Set(ofLevel(findings, "ok"))].sort()).toEqual([
      "access",
      "clock",
      "eviction",
      "latency",
      "memory",
      "nodes",
      "persistence",
      "replicas",
      "rights",
      "role",
      "servers",
      "trial",
      "version",
    ]);
  });

  test("leaves nothing behind but markers and counters", async () => {
    await examineStore(url);
    for (const server of servers) {
      const keys = (await server.cli("keys", "*")).split("\n");
      for (const key of keys) expect(key).toMatch(/^holdfast-quorum:(marker|last:\d+)$/);
    }
  });

  test("works with a maxTtl below the ttl of its trial", async () => {
    const own = await start(3);
    const short = `${redlockUrl(own)}?maxTtl=5s`;
    expect(one(await examineStore(short), "trial").level).toBe("ok");
    const findings = await examineStore(redlockUrl(own));
    expect(one(findings, "maxTtl")).toMatchObject({
      level: "note",
      what: expect.stringMatching(/^the URL says 60 s, .* is 5 s: /),
    });
  });

  test("notes that a node without appendfsync always loses its vote, and names the node", async () => {
    const own = await used();
    await own[1]!.cli("config", "set", "appendfsync", "everysec");
    const findings = await examineStore(redlockUrl(own));
    expect(findings.filter(({ about }) => about === "persistence")).toContainEqual({
      about: "persistence",
      level: "note",
      what: "appendfsync everysec: after a crash the node stays out of the vote for maxTtl (60 s)",
      advice: "Set appendonly yes and appendfsync always.",
      where: own[1]!.url,
    });
    // Clients that have connected before believe that nothing can be lost.
    expect(one(findings, "marker")).toMatchObject({ level: "danger", where: own[1]!.url });
  });

  test("reports a node that has lost its data: recovering, and all of it", async () => {
    const own = await used();
    await own[2]!.cli("flushall");
    const lost = await examineStore(redlockUrl(own));
    expect(one(lost, "nodes")).toMatchObject({
      level: "danger",
      what: expect.stringContaining(`${own[2]!.url} is new or has lost all data`),
    });
    expect(one(lost, "trial").level).toBe("ok");
    await own[2]!.cli("set", MARKER, `${FORMAT} other 60000 later 0`);
    expect(one(await examineStore(redlockUrl(own)), "nodes").what).toMatch(
      /^2 of 3 vote \(redis:\S+ has lost data, and votes again in 60 s\): if one more fails/,
    );
    await own[2]!.cli("set", MARKER, "7 a later format");
    const newer = await examineStore(redlockUrl(own));
    expect(one(newer, "marker")).toMatchObject({ level: "danger", where: own[2]!.url });
    expect(one(newer, "nodes").what).toContain("has a marker of another format");
  });

  test("reports a node that has lost its data and got a lease again", async () => {
    const own = await used();
    const locks = await connect(redlockUrl(own), { ttl: "10s" });
    onTestFinished(() => locks.close());
    const lease = await locks.acquire("name");
    await own[2]!.cli("flushall");
    await lease.renew();
    await until("it has the lease again", () => hasRecord(own[2]!));
    expect(await own[2]!.cli("exists", MARKER)).toBe("0");
    expect(one(await examineStore(redlockUrl(own)), "nodes").what).toMatch(
      /^2 of 3 vote \(redis:\S+ has lost data, and votes again in 60 s\): if one more fails/,
    );
  });

  test("reports nodes that are down or refuse, and rejects if a majority is", async () => {
    const own = await used(5);
    const five = redlockUrl(own);
    await own[4]!.kill();
    expect(one(await examineStore(five), "nodes")).toMatchObject({
      level: "note",
      what: expect.stringMatching(/^4 of 5 vote \(.*ECONNREFUSED.*\): 1 more may fail$/),
    });
    await own[3]!.cli("config", "set", "requirepass", "sesame");
    const two = await examineStore(five);
    expect(one(two, "nodes")).toMatchObject({
      level: "danger",
      what: expect.stringMatching(/^3 of 5 vote .*NOAUTH.* if one more fails, nothing can be/),
    });
    expect(one(two, "trial").level).toBe("ok");
    await own[0]!.kill();
    const error = await rejection(examineStore(five));
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE" });
    for (const { port } of [own[0]!, own[3]!, own[4]!]) {
      expect(error.message).toContain(`127.0.0.1:${port}`);
    }
  });

  test("finds one server behind two addresses, and does not try the store then", async () => {
    await using proxy = await TcpProxy.open(servers[0]!);
    const findings = await examineStore(redlockUrl([servers[0]!, servers[1]!, proxy]));
    expect(one(findings, "servers")).toMatchObject({
      level: "danger",
      what: expect.stringContaining("are the same Redis server"),
    });
    expect(findings.map(({ about }) => about)).not.toContain("trial");
  });

  test("reports a node that is a replica, and replicas of a node", async () => {
    const own = await used();
    const replica = await lab.redis({ replicaOf: own[0]!, persistence: "always" });
    await replica.synced();
    const primary = await examineStore(redlockUrl(own));
    expect(primary.filter(({ about }) => about === "replicas")).toContainEqual(
      expect.objectContaining({ level: "note", where: own[0]!.url }),
    );
    const findings = await examineStore(redlockUrl([own[1]!, own[2]!, replica]));
    expect(findings.filter(({ about }) => about === "role")).toContainEqual({
      about: "role",
      level: "danger",
      what: "a replica: it refuses every claim, renewal and release",
      advice: "Name the primary in the URL.",
      where: replica.url,
    });
    // A server that writes its first append-only file ignores SIGTERM.
    await replica.kill();
  });

  test("reports a replica that was promoted: recovering, with appendfsync always, too", async () => {
    const own = await used();
    const replica = await lab.redis({ replicaOf: own[0]!, persistence: "always" });
    onTestFinished(() => replica.kill());
    await replica.synced();
    await replica.promote();
    const findings = await examineStore(redlockUrl([replica, own[1]!, own[2]!]));
    expect(one(findings, "nodes").what).toMatch(
      new RegExp(`^2 of 3 vote \\(${replica.url} has lost data, and votes again in 60 s\\)`),
    );
    // The trial has examined it as any client does.
    expect(await replica.cli("get", MARKER)).toMatch(/ always lost\d+$/);
  });

  describe("finds about rights", () => {
    /** As docs/stores/quorum.md lists them. */
    const NEEDED = [...Object.keys(NODE_RIGHTS.commands), "SUBSCRIBE"].map(
      (name) => `+${name.toLowerCase()}`,
    );
    const PLACES = ["~holdfast-quorum:*", "resetchannels", "&holdfast-quorum:*"];

    async function as(...rules: string[]): Promise<string> {
      const name = `user-${Math.random().toString(36).slice(2)}`;
      for (const server of servers) {
        await server.cli("acl", "setuser", name, "on", ">sesame", ...rules);
      }
      return redlockUrl(servers, `${name}:sesame@`);
    }

    test("that the needed ones suffice, for waiting, list and a forced release too", async () => {
      const least = await as(...PLACES, ...NEEDED);
      const findings = await examineStore(least);
      expect(ofLevel(findings, "danger")).toEqual([]);
      expect(one(findings, "trial").level).toBe("ok");
      expect(
        findings.filter(({ about, level }) => about === "persistence" && level === "note"),
      ).toEqual([expect.objectContaining({ what: expect.stringMatching(/CONFIG is refused/) })]);
      const locks = await connect(least, { ttl: "5s" });
      onTestFinished(() => locks.close());
      await locks.acquire("name");
      const waiting = locks.acquire("name", { wait: "10s" });
      expect((await locks.list()).map(({ name }) => name)).toEqual(["name"]);
      await locks.forceRelease("name", { why: "a test" });
      await (await waiting).release();
      expect(JSON.stringify(findings)).not.toContain("sesame");
    });

    test.each(NEEDED)("that a user lacks %s", { timeout: 60_000 }, async (right) => {
      const findings = await examineStore(
        await as(...PLACES, ...NEEDED.filter((one) => one !== right)),
      );
      const danger = findings.find(({ about, level }) => about === "rights" && level === "danger")!;
      expect(danger.what).toContain(`may not use ${right.slice(1).toUpperCase()}`);
      expect(danger.advice).toMatch(/^ACL SETUSER user-\w+ ~holdfast-quorum:\* &holdfast-quorum/);
      expect(one(findings, "servers").level).toBe(right === "+info" ? "unknown" : "ok");
      const nodes = one(findings, "nodes");
      if (["+get", "+info", "+time"].includes(right)) {
        expect(one(findings, "marker").level).toBe("unknown");
        expect(nodes.level).toBe("unknown");
        expect(nodes.what).toMatch(/^at most 3 of 3 vote /);
        for (const { url } of servers)
          expect(nodes.what).toContain(`whether ${url} votes is unknown`);
      } else expect(nodes.what).toBe("all 3 answer and vote");
    });

    test("that one server does not tell whether it votes, while the others are a bare majority", async () => {
      const own = await used();
      await own[0]!.cli("acl", "setuser", "default", "-get");
      await own[1]!.cli("flushall");
      expect(one(await examineStore(redlockUrl(own)), "nodes")).toMatchObject({
        level: "danger",
        what: expect.stringMatching(/^at most 2 of 3 vote .*: if one more fails/),
      });
    });

    test("that the error of a claim names the page with the rights", async () => {
      const error = await rejection(
        connect(await as(...PLACES, ...NEEDED.filter((one) => one !== "+info"))),
      );
      expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      expect(error.message).toContain("docs/stores/quorum.md");
    });
  });
});
