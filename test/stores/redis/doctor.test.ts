import { rmSync } from "node:fs";
import { createClient } from "redis";
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from "vitest";
import type { Finding } from "../../../src/doctor/finding.js";
import { isLoopback } from "../../../src/doctor/measures.js";
import { examineStore } from "../../../src/examine.js";
import { connectionOf } from "../../../src/stores/redis/client.js";
import type { Facts } from "../../../src/stores/redis/doctor/facts.js";
import { checkRights, TRIED } from "../../../src/stores/redis/doctor/rights.js";
import { judgeFacts } from "../../../src/stores/redis/doctor/settings.js";
import { counterOf, keyOf } from "../../../src/stores/redis/keys.js";
import { SCRIPTS } from "../../../src/stores/redis/scripts.js";
import { parseStoreUrl } from "../../../src/stores/registry.js";
import type { Subscription } from "../../../src/stores/shared/listener.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { FalseClock } from "../../../src/verify/lab/clock.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { startRedisCluster } from "../../../src/verify/lab/redis-cluster.js";
import { until } from "../../../src/verify/lab/until.js";
import { ofLevel, one } from "../../support/findings.js";
import { describeWith, needs } from "../../support/needs.js";

describe("findings from what a server reports", () => {
  const info = new Map([
    ["redis_version", "7.0.15"],
    ["role", "master"],
    ["cluster_enabled", "0"],
    ["maxmemory", "0"],
    ["maxmemory_policy", "noeviction"],
    ["used_memory", "1000000"],
    ["total_system_memory", "16000000000"],
    ["aof_enabled", "1"],
    ["connected_slaves", "0"],
  ]);
  const config = new Map([["appendfsync", "always"]]);
  const findingsFor = (more: Record<string, string>, facts: Partial<Facts> = {}): Finding[] =>
    judgeFacts(
      { info: new Map([...info, ...Object.entries(more)]), config, ...facts },
      { cluster: false, replicas: 0, works: true },
    );

  test.each([
    ["6.2.0", "ok"],
    ["7.0.15", "ok"],
    ["10.1.2", "ok"],
    ["6.0.16", "danger"],
    ["5.0.7", "danger"],
    ["2.8", "danger"],
    ["unstable", "unknown"],
    ["", "unknown"],
  ])("version %j: %s", (version, level) => {
    expect(one(findingsFor({ redis_version: version }), "version").level).toBe(level);
  });

  test("memory: a machine that has none left, with no maxmemory", () => {
    expect(ofLevel(findingsFor({}), "ok")).toContain("memory");
    expect(ofLevel(findingsFor({ total_system_memory: "1010000" }), "danger")).toEqual(["memory"]);
    // Some servers do not report the machine's memory.
    expect(ofLevel(findingsFor({ total_system_memory: "" }), "ok")).toContain("memory");
  });

  test("a value that the server does not report is unknown", () => {
    const nothing = judgeFacts(
      { info: new Map(), config: new Map() },
      { cluster: false, replicas: 0, works: true },
    );
    expect(ofLevel(nothing, "unknown")).toEqual([
      "version",
      "role",
      "eviction",
      "memory",
      "persistence",
      "replicas",
    ]);
    expect(nothing.length).toBe(6);
    const persistence = one(
      findingsFor({}, { config: "CONFIG is refused: NOPERM" }),
      "persistence",
    );
    expect(persistence).toMatchObject({ level: "unknown", what: expect.stringMatching(/NOPERM/) });
  });
});

test("the doctor names a command that the server does not have", async () => {
  const server = {
    where: "",
    command: async (name: string) => {
      if (name === "EVAL") throw new Error("ERR unknown command 'EVAL', with args beginning with:");
    },
  };
  const subscribe = async (): Promise<Subscription> => ({
    ping: async () => {},
    close: async () => {},
  });
  expect(await checkRights(server, { subscribe }, parseStoreUrl("redis://host"))).toMatchObject({
    level: "danger",
    what: expect.stringContaining("EVAL (the server has no such command)"),
    advice: expect.not.stringContaining("ACL"),
  });
});

test("the doctor knows which addresses are this machine's own", () => {
  for (const host of ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "[::1]"]) {
    expect(isLoopback(host)).toBe(true);
  }
  for (const host of ["127.example.com", "localhost.example.com", "10.0.0.1", "::2", "0.0.0.0"]) {
    expect(isLoopback(host)).toBe(false);
  }
});

test("the doctor tries every command of the scripts", () => {
  const code = Object.values(SCRIPTS)
    .map((script) => script.code)
    .join("\n");
  const commands = new Set([...code.matchAll(/redis\.p?call\('(\w+)'/g)].map(([, name]) => name!));
  expect(commands.size).toBeGreaterThan(5);
  expect(Object.keys(TRIED)).toEqual(expect.arrayContaining([...commands]));
});

describeWith(["redis"], "the doctor on Redis", () => {
  let lab: Lab;
  let server: RedisServer;
  let hanging: Promise<unknown>;
  let withoutTls: Promise<unknown>;

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis({ persistence: "always" });
    // Started early because they take long: the other tests run meanwhile.
    const [stopped, plain] = await Promise.all([lab.redis(), lab.redis()]);
    await stopped.pause();
    hanging = examineStore(stopped.url).catch((error: unknown) => error);
    withoutTls = examineStore(`rediss://${plain.address}:${plain.port}`).catch(
      (error: unknown) => error,
    );
  });
  afterAll(() => lab.close());

  const set = (name: string, value: string): Promise<string> =>
    server.cli("config", "set", name, value);

  const WELL = {
    appendonly: "yes",
    appendfsync: "always",
    "no-appendfsync-on-rewrite": "no",
    save: "",
    maxmemory: "0",
    "maxmemory-policy": "noeviction",
    bind: "127.0.0.1",
    "protected-mode": "no",
  };
  beforeEach(async () => {
    await server.cli("flushall");
    for (const [name, value] of Object.entries(WELL)) await set(name, value);
  });

  test("finds no danger in a well configured server, and leaves nothing behind", async () => {
    const findings = await examineStore(server.url);
    expect(findings.filter(({ level }) => level !== "ok")).toEqual([]);
    expect(ofLevel(findings, "ok").sort()).toEqual([
      "access",
      "clock",
      "eviction",
      "keys",
      "latency",
      "memory",
      "persistence",
      "replicas",
      "rights",
      "role",
      "trial",
      "version",
    ]);
    // The counter of tokens, which never expires.
    const keys = (await server.cli("keys", "*")).split("\n");
    expect(keys).toEqual([expect.stringMatching(/^holdfast:\{\d+\}last$/)]);
    expect(await server.cli("pttl", keys[0]!)).toBe("-1");
  });

  describe("finds the danger of", () => {
    test.each<[Record<string, string>, string, RegExp]>([
      [{ appendonly: "no" }, "persistence", /^nothing is kept/],
      [{ appendonly: "no", save: "3600 1" }, "persistence", /^snapshots only \(save 3600 1\)/],
      [{ appendfsync: "everysec" }, "persistence", /everysec: with a crash the last second/],
      [{ appendfsync: "no" }, "persistence", /^appendfsync no/],
      [{ "no-appendfsync-on-rewrite": "yes" }, "persistence", /while the log is rewritten/],
      [
        { maxmemory: "1gb", "maxmemory-policy": "allkeys-lru" },
        "eviction",
        /^maxmemory-policy is allkeys-lru: .*granted again/,
      ],
      [
        { maxmemory: "1gb", "maxmemory-policy": "volatile-ttl" },
        "eviction",
        /^maxmemory-policy is volatile-ttl/,
      ],
      // This address can't be bound, which the dash allows: nobody can connect by it.
      [
        { bind: "127.0.0.1 -192.0.2.1" },
        "access",
        /no password is needed, and other machines can connect/,
      ],
    ])("%j", async (settings, about, what) => {
      for (const [name, value] of Object.entries(settings)) await set(name, value);
      const findings = await examineStore(server.url);
      expect(ofLevel(findings, "danger")).toEqual([about]);
      expect(one(findings, about)).toMatchObject({
        what: expect.stringMatching(what),
        advice: expect.stringMatching(/^\S/),
      });
    });

    test("memory that is nearly full, and full: then nothing can be locked", async () => {
      const info = await server.cli("info", "memory");
      const used = Number(/used_memory:(\d+)/.exec(info)![1]);
      await set("maxmemory", String(Math.round(used * 1.05)));
      const nearly = await examineStore(server.url);
      expect(ofLevel(nearly, "danger")).toContain("memory");
      expect(one(nearly, "memory").what).toMatch(/^9\d % of maxmemory/);
      await set("maxmemory", "1000");
      const full = await examineStore(server.url);
      expect(ofLevel(full, "danger")).toEqual(["memory", "trial"]);
      expect(one(full, "trial").what).toMatch(/take a free name: .*OOM/);
    });

    test("a snapshot that failed: the server refuses to write", async () => {
      const own = await lab.redis({ config: { save: "3600 1" } });
      const folder = (await own.cli("config", "get", "dir")).split("\n")[1]!;
      rmSync(folder, { recursive: true });
      await own.cli("set", "key", "value");
      await own.cli("bgsave");
      await until("it has failed", 5_000, async () =>
        (await own.cli("info", "persistence")).includes("rdb_last_bgsave_status:err"),
      );
      const findings = await examineStore(own.url);
      expect(ofLevel(findings, "danger")).toEqual(["persistence", "disk", "trial"]);
      expect(one(findings, "trial").what).toContain("MISCONF");
      await own.kill();
    });

    test("replicas: a grant that does not wait for all of them; too few of them; a server that is a replica", async () => {
      const replica = await lab.redis({ replicaOf: server, persistence: "always" });
      await replica.synced();
      const alone = await examineStore(server.url);
      expect(ofLevel(alone, "danger")).toEqual(["replicas"]);
      expect(one(alone, "replicas").what).toMatch(/^1 of 1 online, .*does not wait for them/);
      expect(one(alone, "replicas").advice).toContain("replicas=1");

      const waiting = await examineStore(`${server.url}?replicas=1`);
      expect(ofLevel(waiting, "danger")).toEqual([]);
      expect(one(waiting, "replicas").level).toBe("note");

      const tooFew = await examineStore(`${server.url}?replicas=2`);
      expect(ofLevel(tooFew, "danger")).toEqual(["replicas", "trial"]);
      expect(one(tooFew, "replicas").what).toContain("replicas=2, but 1 are online");

      const readOnly = await examineStore(replica.url);
      expect(ofLevel(readOnly, "danger")).toEqual(["role", "trial"]);
      await replica.cli("config", "set", "replica-read-only", "no");
      const writable = await examineStore(replica.url);
      expect(ofLevel(writable, "danger")).toEqual(["role"]);
      expect(one(writable, "role").what).toContain("its primary knows nothing of");
      await replica.stop();
    });

    test("a clock that is wrong", async (context) => {
      needs(context, "faketime");
      const clock = await FalseClock.open(lab);
      const own = await lab.redis({ persistence: "always", site: clock.site() });
      expect(ofLevel(await examineStore(own.url), "danger")).toEqual([]);
      for (const [aheadMs, what] of [
        [31_000, /3[01]\.\d s ahead of this machine's/],
        [-31_000, /3[01]\.\d s behind this machine's/],
      ] as const) {
        const jump = clock.jump(aheadMs);
        await jump.inject();
        const findings = await examineStore(own.url);
        expect(ofLevel(findings, "danger")).toEqual(["clock"]);
        expect(one(findings, "clock").what).toMatch(what);
        await jump.heal();
      }
      await own.stop();
    });

    test("keys that are not what they should be", async () => {
      await server.cli("rpush", keyOf("default:list"), "1");
      await server.cli("hset", keyOf("default:hash"), "field", "1");
      await server.cli("set", keyOf("default:text"), "not packed");
      await server.cli("set", counterOf("default:list"), "many");
      await server.cli("set", "holdfast:other", "1");
      await server.cli("set", "holdfast:fence:{order:1}", "1"); // those of redisFence are Holdfast's too
      await server.cli("set", "holdfast:{1}n:elsewhere", "1");
      const findings = await examineStore(server.url);
      const [broken, names, strangers] = findings.filter(({ about }) => about === "keys");
      expect(broken!.level).toBe("danger");
      expect(broken!.what).toMatch(/: ("\S+"; ){3}and 1 more$/);
      expect(names).toEqual({
        about: "keys",
        level: "ok",
        what: "names in use or released by force within the hour: 3",
      });
      expect(strangers!.level).toBe("note");
      expect(strangers!.what).toContain('"holdfast:other"');
      expect(strangers!.what).toContain('"holdfast:{1}n:elsewhere"');
      expect(strangers!.what).not.toContain("fence");
      expect(ofLevel(findings, "danger")).toEqual(["keys"]);
    });
  });

  test("notes a policy without effect and a slow connection, which are no danger", async () => {
    await set("maxmemory-policy", "allkeys-random");
    await using proxy = await TcpProxy.open(server);
    await proxy.delay(55, "to-client").inject();
    const findings = await examineStore(`redis://${proxy.address}:${proxy.port}`);
    expect(ofLevel(findings, "danger")).toEqual([]);
    expect(ofLevel(findings, "note")).toEqual(["eviction", "latency"]);
  });

  describe("finds about rights", () => {
    const NEEDED = [...Object.keys(TRIED), "SUBSCRIBE"].map((name) => `+${name.toLowerCase()}`);

    /** The URL of a user with a password and these rights. */
    async function user(...rules: string[]): Promise<string> {
      const name = `user-${Math.random().toString(36).slice(2)}`;
      await server.cli("acl", "setuser", name, "on", ">sesame", ...rules);
      return server.url.replace("//", `//${name}:sesame@`);
    }

    test("that the needed rights suffice; a setting that the user may not read is unknown", async () => {
      const findings = await examineStore(await user("~holdfast:*", "&holdfast:*", ...NEEDED));
      expect(ofLevel(findings, "danger")).toEqual([]);
      expect(ofLevel(findings, "ok")).toEqual(
        expect.arrayContaining(["version", "clock", "latency", "rights", "trial", "keys"]),
      );
      expect(ofLevel(findings, "unknown")).toEqual([
        "role",
        "eviction",
        "memory",
        "persistence",
        "replicas",
        "access",
      ]);
      for (const { level, what } of findings) {
        if (level === "unknown") expect(what).toMatch(/\((INFO|CONFIG) is refused: NOPERM\)$/);
      }
      expect(JSON.stringify(findings)).not.toContain("sesame");
    });

    test.each<[string, string[], RegExp, RegExp]>([
      [
        "commands",
        ["~holdfast:*", "&holdfast:*", ...NEEDED.filter((one) => !/hset|publish/.test(one))],
        /may not use HSET, PUBLISH \(not at all\)/,
        /^ACL SETUSER user-\w+ ~holdfast:\* &holdfast:\* \+hset \+publish$/,
      ],
      [
        "keys",
        ["~other:*", "&holdfast:*", ...NEEDED],
        /GET, SET, DEL, .* \(not on keys holdfast:\*\)/,
        /~holdfast:\*/,
      ],
      [
        "channels",
        ["~holdfast:*", "resetchannels", ...NEEDED],
        /PUBLISH, SUBSCRIBE \(not on channels holdfast:\*\)/,
        /&holdfast:\*/,
      ],
    ])("that a user lacks %s", async (_, rules, what, advice) => {
      const findings = await examineStore(await user(...rules));
      expect(ofLevel(findings, "danger").sort()).toEqual(["rights", "trial"]);
      const danger = findings.find(({ about, level }) => about === "rights" && level === "danger")!;
      expect(danger.what).toMatch(what);
      expect(danger.advice).toMatch(advice);
    });

    test("that a user can't read names, without calling them broken", async () => {
      const rules = NEEDED.filter((one) => one !== "+get");
      await server.cli("hset", keyOf("default:hash"), "front", "1");
      const findings = await examineStore(await user("~holdfast:*", "&holdfast:*", ...rules));
      expect(one(findings, "keys").level).toBe("ok");
    });

    test("that a password keeps others out; the password is not shown", async () => {
      await set("bind", "127.0.0.1 -192.0.2.1");
      await set("requirepass", "sesame");
      onTestFinished(async () => {
        await server.cli("-a", "sesame", "config", "set", "requirepass", "");
      });
      const findings = await examineStore(server.url.replace("//", "//:sesame@"));
      expect(findings.filter(({ level }) => level !== "ok")).toEqual([]);
      expect(one(findings, "access").what).toBe("the server lets nobody in without a password");
      expect(JSON.stringify(findings)).not.toContain("sesame");
      await expect(examineStore(server.url)).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
        message: expect.stringContaining("NOAUTH"),
      });
    });

    test("that protected mode keeps others out", async () => {
      await set("bind", "127.0.0.1 -192.0.2.1");
      await set("protected-mode", "yes");
      expect(one(await examineStore(server.url), "access").level).toBe("ok");
    });
  });

  test("checks each server of a cluster, and names what does not hold on all of them", async () => {
    const servers = await startRedisCluster(lab);
    const [first, second] = servers;
    for (const each of servers) {
      await each.cli("config", "set", "appendonly", "yes");
      await each.cli("config", "set", "appendfsync", "always");
    }
    const where = `${second!.address}:${second!.port}`;
    await second!.cli("config", "set", "appendfsync", "everysec");
    const findings = await examineStore(`${first!.url}?cluster`);
    const dangers = findings.filter(({ level }) => level === "danger");
    expect(dangers).toEqual([expect.objectContaining({ about: "persistence", where })]);
    expect(one(findings, "cluster")).toEqual({
      about: "cluster",
      level: "ok",
      what: "all slots of the cluster are served",
    });
    expect(one(findings, "trial").level).toBe("ok");

    const aloud = await examineStore(first!.url);
    expect(one(aloud, "cluster").what).toContain("the URL does not say so");
    expect(ofLevel(aloud, "danger")).toContain("cluster");

    await first!.cli("config", "set", "cluster-require-full-coverage", "no");
    await first!.cli("cluster", "delslots", "0");
    const gap = await examineStore(`${first!.url}?cluster`);
    expect(ofLevel(gap, "danger")).toContain("cluster");
    await Promise.all(servers.map((each) => each.stop()));
  });

  test("gets the same replies from node-redis", async () => {
    const client = createClient({ url: server.url });
    await client.connect();
    onTestFinished(() => client.destroy());
    const connection = connectionOf(client);
    const [only] = await connection.servers();
    expect(await only!.command("PING")).toBe("PONG");
    expect(String(await only!.command("INFO", "server"))).toContain("redis_version:");
    await expect(only!.command("NONESUCH")).rejects.toThrow(/^ERR unknown command/);
  });

  test("reports a server that accepts connections and never replies as unavailable", async () => {
    expect(await hanging).toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining("no answer"),
    });
  });

  test("says that a server answers without TLS, which takes as long to find out", async () => {
    expect(await withoutTls).toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining("it answers without TLS: write redis: instead of rediss:"),
    });
  });
});
