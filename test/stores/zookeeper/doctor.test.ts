import { describe, expect, test } from "vitest";
import type { Finding, Level } from "../../../src/doctor/finding.js";
import { examineStore } from "../../../src/examine.js";
import { connect } from "../../../src/index.js";
import { parseStoreUrl } from "../../../src/stores/registry.js";
import { checkAccess } from "../../../src/stores/zookeeper/doctor/access.js";
import { judgeEnsemble, parseMembers } from "../../../src/stores/zookeeper/doctor/ensemble.js";
import { judgeSession } from "../../../src/stores/zookeeper/doctor/session.js";
import { readStatus, type ServerStatus } from "../../../src/stores/zookeeper/doctor/status.js";
import { Layout } from "../../../src/stores/zookeeper/layout.js";
import { digestAcl, OPEN_ACL, ZooKeeperClient } from "../../../src/zookeeper/index.js";
import { holdfast, makeFolder } from "../../cli/helpers.js";
import { ofLevel, one } from "../../support/findings.js";
import { describeWith } from "../../support/needs.js";
import { expectCode, openClient } from "../../support/zookeeper.js";
import { OneZooKeeper } from "../../support/zookeeper-store.js";

describe("findings from what servers tell", () => {
  const srvr = (version: string, mode: string): string =>
    `Zookeeper version: ${version}-abc123, built on 2024-01-01 00:00 UTC\nLatency min/avg/max: 0/0.0/0\nMode: ${mode}\nNode count: 5\n`;
  const CONF =
    "clientPort=2181\ntickTime=2000\nmaxClientCnxns=60\nminSessionTimeout=4000\nmaxSessionTimeout=40000\n";
  const SECRET = "conf is not executed because it is not in the whitelist.\n";
  const status = (i: number, mode = "follower", version = "3.9.3", conf = CONF): ServerStatus =>
    readStatus(`h${i}:2181`, srvr(version, mode), conf);
  const three = (version?: string): ServerStatus[] => [
    status(1, "leader", version),
    status(2, "follower", version),
    status(3, "follower", version),
  ];
  const silent = (i: number): ServerStatus =>
    readStatus(`h${i}:2181`, new Error("nobody listens"), new Error("nobody listens"));
  const find = (
    statuses: readonly ServerStatus[],
    members: Parameters<typeof judgeEnsemble>[1] = { voters: statuses.length, observers: 0 },
  ): Finding[] => {
    const hosts = statuses.map(({ server }) => server).join(",");
    return judgeEnsemble(statuses, members, parseStoreUrl(`zookeeper://${hosts}`));
  };

  test("no finding when all is well", () => {
    expect(find(three()).filter(({ level }) => level !== "ok")).toEqual([]);
    const session = judgeSession({ longestMs: 60_000, shortestMs: 4_000 }, three());
    expect(session.filter(({ level }) => level !== "ok")).toEqual([]);
  });

  test.each<[string, Level, Level]>([
    ["3.9.3", "ok", "ok"],
    ["3.10.0", "ok", "ok"],
    ["4.0.0", "ok", "ok"],
    ["3.9.2", "ok", "note"],
    ["3.8.0", "ok", "note"],
    ["3.6.3", "ok", "note"],
    ["3.6.2", "ok", "danger"],
    ["3.5.10", "danger", "danger"],
    ["3.4.14", "danger", "danger"],
  ])("version %s is %s for one server, %s for three", (version, ofOne, ofThree) => {
    const alone = find([status(1, "standalone", version)]);
    expect(one(alone, "version").level).toBe(ofOne);
    expect(one(find(three(version)), "version").level).toBe(ofThree);
  });

  test("versions that differ, and versions that are not told", () => {
    const mixed = find([...three().slice(1), status(1, "leader", "3.6.2")]);
    expect(mixed.filter(({ about }) => about === "version")).toEqual([
      expect.objectContaining({ level: "danger", where: "h1:2181" }),
      expect.objectContaining({ level: "ok", where: "h2:2181, h3:2181" }),
      expect.objectContaining({ level: "note", what: expect.stringContaining("3.6.2, 3.9.3") }),
    ]);
    const secret = readStatus("h1:2181", "srvr is not executed because …\n", SECRET);
    expect(one(find([secret]), "version").level).toBe("unknown");
  });

  test.each<[number, number, number, Level, RegExp]>([
    [1, 0, 1, "note", /one server/],
    [2, 0, 2, "note", /two voting servers/],
    [3, 0, 3, "ok", /3 voting/],
    [4, 0, 4, "note", /do without 1, which 3/],
    [5, 2, 7, "ok", /5 voting/],
    [3, 2, 3, "note", /names 3 of 5/],
    [3, 0, 1, "note", /names 1 of 3/],
  ])(
    "%i voters and %i observers, %i of them named: %s",
    (voters, observers, named, level, what) => {
      const statuses = Array.from({ length: named }, (_, i) => status(i));
      const found = one(find(statuses, { voters, observers }), "ensemble");
      expect(found).toMatchObject({ level, what: expect.stringMatching(what) });
    },
  );

  test("members are read from the servers' own configuration", () => {
    const config = [
      "server.1=zk1:2888:3888:participant;0.0.0.0:2181",
      "server.2=zk2:2888:3888;2181",
      "server.3=zk3:2888:3888:observer;0.0.0.0:2181",
      "version=100000000",
    ];
    expect(parseMembers(config.join("\n"))).toEqual({ voters: 2, observers: 1 });
    expect(parseMembers("version=0")).toEqual({ voters: 1, observers: 0 });
    expect(one(find(three(), "no right"), "ensemble").level).toBe("unknown");
  });

  test("servers that are away: a danger when no other is to spare", () => {
    const five = { voters: 5, observers: 0 };
    const spare = find([...three(), status(4), silent(5)], five);
    expect(one(spare, "servers")).toMatchObject({ level: "note", where: "h5:2181" });
    const none = find([...three().slice(1), silent(1)]);
    expect(one(none, "servers")).toMatchObject({ level: "danger", where: "h1:2181" });
    const idle = readStatus(
      "h1:2181",
      "This ZooKeeper instance is not currently serving requests\n",
      CONF,
    );
    expect(one(find([...three().slice(1), idle]), "servers").what).toContain("no majority");
  });

  test("observers and read-only servers", () => {
    const observers = { voters: 3, observers: 1 };
    const some = find([...three(), status(4, "observer")], observers);
    expect(one(some, "servers")).toMatchObject({ level: "ok", where: "h4:2181" });
    const only = find([status(4, "observer")], observers);
    expect(one(only, "servers").level).toBe("note");
    const cut = find([...three().slice(1), status(1, "read-only")]);
    expect(one(cut, "servers")).toMatchObject({ level: "danger", where: "h1:2181" });
  });

  describe("about the session's timeout", () => {
    const granted = { longestMs: 40_000, shortestMs: 4_000 };
    const levels = (found: readonly Finding[]): Level[] => found.map(({ level }) => level);
    const withConf = (conf: string, i = 1): ServerStatus => status(i, "follower", "3.9.3", conf);

    test("the longest, below what the default ttl needs", () => {
      const [longest] = judgeSession(granted, three());
      expect(longest).toMatchObject({ level: "note", what: expect.stringContaining("23529 ms") });
    });

    test("the shortest, below two ticks: leases with a short ttl are not safe", () => {
      const short = CONF.replace("minSessionTimeout=4000", "minSessionTimeout=3999");
      const found = judgeSession({ ...granted, shortestMs: 3_999 }, [withConf(short)]);
      expect(levels(found)).toEqual(["note", "danger"]);
      expect(found[1]!.what).toContain("below 2353 ms");
    });

    test("the shortest, where a server does not tell its tick", () => {
      const secret = [withConf(CONF), withConf(SECRET, 2)];
      expect(levels(judgeSession(granted, secret))).toEqual(["note", "note"]);
      const short = judgeSession({ ...granted, shortestMs: 400 }, secret);
      expect(levels(short)).toEqual(["note", "unknown"]);
      expect(short[1]!.advice).toContain("4lw.commands.whitelist");
    });

    test("limits that differ between servers", () => {
      const other = CONF.replace("maxSessionTimeout=40000", "maxSessionTimeout=20000");
      const found = judgeSession(granted, [withConf(CONF), withConf(other, 2)]);
      expect(levels(found)).toEqual(["note", "ok", "danger"]);
      expect(found[2]!.what).toContain(
        "maxSessionTimeout differs between the servers (40000, 20000 ms)",
      );
    });
  });
});

describeWith(["zookeeper"], "the doctor on ZooKeeper", () => {
  const zookeeper = OneZooKeeper.forAll();

  test("finds no danger on one server, and leaves nothing behind", async () => {
    const root = zookeeper.root();
    const findings = await examineStore(`${zookeeper.server.url}${root}`);
    expect(ofLevel(findings, "danger")).toEqual([]);
    expect(ofLevel(findings, "unknown")).toEqual([]);
    expect(ofLevel(findings, "note")).toEqual(["ensemble"]);
    expect([...new Set(findings.map(({ about }) => about))].sort()).toEqual([
      ...["access", "containers", "ensemble", "latency", "servers", "session", "trial", "version"],
    ]);
    expect(one(findings, "version").what).toMatch(/^ZooKeeper 3\.\d+\.\d+$/);
    const { names } = new Layout(root);
    const { children } = await zookeeper.admin.getChildren(names);
    expect(children.filter((name) => name.startsWith("doctor-"))).toEqual([]);
  });

  test("a user in the URL owns all nodes, and strangers are refused", async () => {
    const root = zookeeper.root();
    const as = (login: string): string =>
      `${zookeeper.server.url.replace("//", `//${login}`)}${root}`;
    const locks = await connect(as("app:sesame@"), { ttl: 2_000 });
    const lease = await locks.acquire("name");
    const login = { user: "app", password: "sesame" };
    const owner = await openClient({ servers: [zookeeper.address], auth: login });
    const all = async (path: string): Promise<string[]> => {
      const { children } = await owner.getChildren(path);
      return [path, ...(await Promise.all(children.map((one) => all(`${path}/${one}`)))).flat()];
    };
    const paths = await all(root);
    // The root, its three folders, the session, the name and its claim.
    expect(paths.length).toBe(7);
    for (const path of paths) {
      expect((await owner.getAcl(path)).acl, path).toEqual([digestAcl(login)]);
    }
    await expectCode(zookeeper.admin.getChildren(root), "NO_AUTH");
    for (const stranger of ["", "eve:guess@"]) {
      const error = await connect(as(stranger)).catch((thrown) => thrown);
      expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      expect(error.message).toMatch(/ACL/);
      const findings = await examineStore(as(stranger));
      expect(ofLevel(findings, "danger")).toEqual(["containers", "trial"]);
      expect(JSON.stringify(findings)).not.toContain("guess");
    }
    const findings = await examineStore(as("app:sesame@"));
    expect(ofLevel(findings, "danger")).toEqual([]);
    expect(one(findings, "access").what).toBe("only users with rights can change the locks");
    expect(JSON.stringify(findings)).not.toContain("sesame");
    await lease.release();
    await locks.close();
  });

  test("many clients may begin at once with a root that somebody has made", async () => {
    const root = zookeeper.root();
    await zookeeper.admin.create(root);
    const url = `${zookeeper.server.url}${root}`;
    const all = await Promise.all([1, 2, 3, 4].map(() => connect(url, { ttl: 2_000 })));
    for (const locks of all) await locks.close();
    // A root with a version of its own is somebody else's, as long as it is empty.
    const used = zookeeper.root();
    await zookeeper.admin.create(used);
    await zookeeper.admin.setData(used, "");
    await expect(connect(`${zookeeper.server.url}${used}`)).rejects.toMatchObject({
      code: "UNSUPPORTED",
    });
  });

  test("nodes that everybody can change are a danger on another machine's servers", async () => {
    const root = zookeeper.root();
    await examineStore(`${zookeeper.server.url}${root}`);
    const elsewhere = parseStoreUrl("zookeeper://app:secret@zk.example:2181");
    const layout = new Layout(root);
    const open = await checkAccess(zookeeper.admin, layout, elsewhere);
    expect(ofLevel(open, "danger")).toEqual(["access"]);
    expect(one(open, "access").what).toContain(`${root}/names`);
    expect(one(open, "access").what).toContain('"app", does not protect');
    expect(ofLevel(open, "note")).toEqual(["transport"]);
    const readable = [{ ...OPEN_ACL[0]!, permissions: ["read"] as const }];
    for (const path of [layout.names, layout.sessions, layout.revoked, root]) {
      await zookeeper.admin.setAcl(path, readable);
    }
    expect(ofLevel(await checkAccess(zookeeper.admin, layout, elsewhere), "danger")).toEqual([]);
  });

  test("prints its findings on the command line", async () => {
    const url = `${zookeeper.server.url}${zookeeper.root()}`;
    const ended = await holdfast(makeFolder(), ["doctor", "--store", url]);
    expect(ended).toMatchObject({ code: 0, stderr: "" });
    expect(ended.stdout).toContain("\n  note     ensemble     one server");
    expect(ended.stdout).toContain("\n  ok       trial        a name was taken, waited for");
  });

  test("the rights of a client are those of all nodes that name none", async () => {
    const auth = { user: "a", password: "b" };
    const client = await openClient({
      servers: [zookeeper.address],
      auth,
      acl: [digestAcl(auth)],
    });
    await client.create("/mine");
    await client.multi([
      { op: "create", path: "/mine/one" },
      { op: "create", path: "/mine/open", acl: OPEN_ACL },
    ]);
    for (const path of ["/mine", "/mine/one"]) {
      expect((await client.getAcl(path)).acl).toEqual([digestAcl(auth)]);
    }
    expect((await client.getAcl("/mine/open")).acl).toEqual(OPEN_ACL);
    await expect(
      ZooKeeperClient.open({ servers: [zookeeper.address], acl: [] }),
    ).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
  });
});
