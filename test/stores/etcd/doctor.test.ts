import { setTimeout as pause } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Finding, Level } from "../../../src/doctor/finding.js";
import { examineStore } from "../../../src/examine.js";
import { checkAgreement } from "../../../src/stores/etcd/doctor/agreement.js";
import { judgeStatuses, type Statuses } from "../../../src/stores/etcd/doctor/status.js";
import type { EndpointStatus } from "../../../src/stores/etcd/rpc/client.js";
import { EtcdError } from "../../../src/stores/etcd/rpc/errors.js";
import type { ClusterMember } from "../../../src/stores/etcd/rpc/messages.js";
import { parseStoreUrl } from "../../../src/stores/registry.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import type { ServerCluster } from "../../../src/verify/lab/cluster.js";
import type { EtcdServer } from "../../../src/verify/lab/etcd.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import { holdfast, makeFolder } from "../../cli/helpers.js";
import { ofLevel as aboutLevel, one } from "../../support/findings.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";

/** Leaves out findings about the installed version, which have a test of their own. */
const ofLevel = (findings: readonly Finding[], level: Level): string[] =>
  aboutLevel(findings, level).filter((about) => about !== "version");

describe("findings from what endpoints report", () => {
  type Status = Extract<EndpointStatus, { error?: undefined }>;
  const status = (id: number, more: Partial<Status> = {}): Status => ({
    endpoint: `h${id}:2379`,
    cluster: 9n,
    member: BigInt(id),
    revision: 1n,
    leader: 1n,
    term: 5n,
    version: "3.6.1",
    dbSize: 1_000_000n,
    dbSizeInUse: 1_000_000n,
    dbSizeQuota: 0n,
    raftIndex: 1n,
    raftAppliedIndex: 1n,
    errors: [],
    isLearner: false,
    ...more,
  });
  const silent = (id: number): EndpointStatus => {
    const endpoint = `h${id}:2379`;
    return { endpoint, error: new EtcdError("gone", { grpcCode: 14, executed: "no", endpoint }) };
  };
  const member = (id: number, more: Partial<ClusterMember> = {}): ClusterMember => ({
    id: BigInt(id),
    name: `m${id}`,
    clientUrls: [`http://h${id}:2379`],
    isLearner: false,
    ...more,
  });
  const THREE = [1, 2, 3].map((id) => member(id));
  const all = (more: Partial<Status> = {}): Status[] => [1, 2, 3].map((id) => status(id, more));
  const findingsFor = (
    last: readonly EndpointStatus[],
    more: Partial<Statuses> = {},
  ): Finding[] => {
    const url = parseStoreUrl(`etcd://${last.map(({ endpoint }) => endpoint).join(",")}`);
    return judgeStatuses({ first: last, last, members: THREE, ...more }, url);
  };
  /** The finding for a cluster of one, and for one of three. */
  const versionOf = (version: string): Finding[] => [
    one(findingsFor([status(1, { version })], { members: [member(1)] }), "version"),
    one(findingsFor(all({ version })), "version"),
  ];

  test("no finding when all is well", () => {
    expect(findingsFor(all()).filter(({ level }) => level !== "ok")).toEqual([]);
  });

  test.each<[string, Level, Level, string?]>([
    ["3.6.0", "ok", "ok"],
    ["3.7.0-alpha.1", "ok", "ok"],
    ["4.0.0", "ok", "ok"],
    ["3.5.13", "ok", "ok"],
    ["3.5.12", "ok", "danger", "3.5.13"],
    ["3.5.4", "danger", "danger", "3.5.13"],
    ["3.5.2", "danger", "danger", "3.5.13"],
    ["3.4.45", "ok", "danger", "3.5.13"],
    ["3.4.23", "ok", "danger", "3.5.13"],
    ["3.4.20", "danger", "danger", "3.5.13"],
    ["3.3.27", "danger", "danger"],
    ["2.3.8", "danger", "danger"],
    ["unknown", "unknown", "unknown"],
  ])("version %s is %s for one member, %s for three", (version, ofOne, ofThree, better) => {
    const [alone, three] = versionOf(version);
    expect([alone!.level, three!.level]).toEqual([ofOne, ofThree]);
    if (better !== undefined) expect(three!.advice).toContain(`${better} or later`);
  });

  describe("the members' data", () => {
    /** The findings when the members report these statuses, one list for each reading. */
    const readings = async (...lists: readonly Status[][]): Promise<readonly Finding[]> => {
      let i = 0;
      return checkAgreement(async () => lists[Math.min(i++, lists.length - 1)]!);
    };

    test("differ if idle members are at different revisions after the same entry", async () => {
      const differing = [status(1), status(2, { revision: 5n }), status(3)];
      const [finding] = await readings(differing);
      expect(finding).toMatchObject({ level: "danger", where: "h1:2379, h2:2379" });
      expect(finding!.what).toContain("h2:2379 at 5");
    });

    test("agree if idle members are at the same revision", async () => {
      expect(await readings(all())).toEqual([expect.objectContaining({ level: "ok" })]);
    });

    test("are not judged while a member applies entries, or after different entries", async () => {
      const behind = [status(1), status(2, { raftAppliedIndex: 2n, revision: 2n })];
      expect(await readings(behind)).toEqual([]);
      let revision = 1n;
      const busy = async (): Promise<Status[]> => [status(1), status(2, { revision: ++revision })];
      expect(await checkAgreement(busy)).toEqual([]);
    });
  });

  test("versions that differ, and the one among them that has a flaw", () => {
    const found = findingsFor([...all().slice(1), status(1, { version: "3.5.12" })]);
    const versions = found.filter(({ about }) => about === "version");
    expect(versions).toEqual([
      expect.objectContaining({ level: "ok", where: "h2:2379, h3:2379" }),
      expect.objectContaining({ level: "danger", where: "h1:2379" }),
      expect.objectContaining({ level: "note", what: expect.stringContaining("3.5.12, 3.6.1") }),
    ]);
  });

  test.each<[string, string, boolean]>([
    ["3.4.23", "", false],
    ["3.4.23", "user:secret@", true],
    ["3.4.42", "user:secret@", false],
    ["3.5.27", "user:secret@", true],
    ["3.6.9", "user:secret@", false],
    ["3.7.0", "user:secret@", false],
  ])("roles of version %s, connected as %j, do not protect: %s", (version, login, expected) => {
    const last = all({ version });
    const url = parseStoreUrl(`etcd://${login}h1:2379`);
    const found = judgeStatuses({ first: last, last, members: THREE }, url);
    expect(found.some(({ about }) => about === "roles")).toBe(expected);
  });

  test("a version is judged for any number of members when they can't be listed", () => {
    const members = "permission denied";
    const found = findingsFor([status(1, { version: "3.4.23" })], { members });
    expect(one(found, "version")).toMatchObject({ level: "danger" });
    expect(one(found, "members")).toMatchObject({ level: "unknown" });
  });

  test("endpoints that do not reply: a danger when no other is to spare", () => {
    const five = [1, 2, 3, 4, 5].map((id) => member(id));
    const spare = findingsFor([...all(), status(4), silent(5)], { members: five });
    expect(one(spare, "endpoints")).toMatchObject({ level: "note", where: "h5:2379" });
    const none = findingsFor([status(1), silent(2), status(3)]);
    expect(one(none, "endpoints")).toMatchObject({ level: "danger", where: "h2:2379" });
    const gone = findingsFor([silent(1), silent(2), silent(3)], { first: all() });
    expect(ofLevel(gone, "danger")).toEqual(["endpoints", "endpoints", "endpoints"]);
    expect(gone.length).toBe(3);
  });

  test("members that disagree, and one that is cut off", () => {
    const found = findingsFor([status(1), status(2), status(3, { leader: 3n })]);
    expect(one(found, "leader").what).toContain("do not agree");
    const cut = findingsFor([status(1), status(2), status(3, { leader: 0n })]);
    expect(one(cut, "leader")).toMatchObject({ level: "danger", where: "h3:2379" });
    const learner = findingsFor([status(1), status(2), status(3, { isLearner: true })]);
    expect(one(learner, "leader")).toMatchObject({ level: "note", where: "h3:2379" });
  });

  test("a term that changes is an election", () => {
    const found = findingsFor(all({ term: 6n }), { first: all() });
    expect(one(found, "elections")).toMatchObject({
      level: "danger",
      what: expect.stringContaining("term 5, then 6"),
    });
  });

  test("an even number of members, one that never started, and learners, which do not count", () => {
    const four = findingsFor(all(), { members: [...THREE, member(4)] });
    expect(one(four, "members").what).toContain("a cluster of 4: it can do without 1");
    const waiting = findingsFor(all(), {
      members: [member(1), member(2), member(3, { name: "" })],
    });
    expect(one(waiting, "members").what).toContain("1 of 3 were added");
    const learner = findingsFor(all(), { members: [...THREE, member(4, { isLearner: true })] });
    expect(one(learner, "members").level).toBe("ok");
    const same = findingsFor([status(1), status(1, { endpoint: "h9:2379" })]);
    expect(one(same, "members")).toMatchObject({ level: "note", where: "h9:2379" });
    const hidden = findingsFor(all(), { members: "permission denied" });
    expect(one(hidden, "members")).toMatchObject({ level: "unknown" });
  });

  test("the part of the quota that is used, if the server reports it", () => {
    const levels = (dbSize: number, dbSizeQuota: number): Finding => {
      const sizes = { dbSize: BigInt(Math.round(dbSize)), dbSizeQuota: BigInt(dbSizeQuota) };
      return one(findingsFor([status(1, sizes)]), "space");
    };
    expect(levels(90, 100).level).toBe("danger");
    expect(levels(89, 100).level).toBe("ok");
    expect(levels(1.9 * 2 ** 30, 0)).toMatchObject({
      level: "note",
      what: expect.stringContaining("95 % of the default quota"),
    });
    expect(levels(2 ** 40, -1).level).toBe("ok");
    const half = findingsFor([status(1), status(2, { dbSize: 2n ** 30n }), status(3)]);
    expect(one(half, "space").what).toContain("50 %");
    const full = findingsFor([status(1), status(2, { dbSize: 9n, dbSizeQuota: 10n }), status(3)]);
    expect(one(full, "space")).toMatchObject({ level: "danger", where: "h2:2379" });
  });

  test("an alarm is a danger, and its finding names it", () => {
    const corrupt = findingsFor(all({ errors: ["memberID:1 alarm:CORRUPT "] }));
    expect(one(corrupt, "alarm").what).toContain("CORRUPT");
    expect(ofLevel(corrupt, "danger")).toEqual(["alarm"]);
  });
});

describeWith(["etcd"], "the doctor on etcd", () => {
  let lab: Lab;
  let server: EtcdServer;
  let three: ServerCluster<EtcdServer>;
  beforeAll(async () => {
    lab = await Lab.open();
    const [single, cluster] = await Promise.all([lab.etcd(), lab.etcd({ nodes: 3 })]);
    server = single.servers[0]!;
    three = cluster;
  });
  afterAll(() => lab.close());

  const hostOf = ({ address, port }: { address: string; port: number }): string =>
    `${address}:${port}`;

  test("finds no danger with three members that are all in the URL, and leaves nothing behind", async () => {
    const findings = await examineStore(three.url);
    const bad = findings.filter(({ level, about }) => level !== "ok" && about !== "version");
    expect(bad).toEqual([]);
    // Whether the data agree is told only if the members have nothing to do.
    const others = findings.filter(({ about }) => about !== "data");
    expect([...new Set(others.map(({ about }) => about))].sort()).toEqual([
      ...["access", "elections", "endpoints", "latency", "leader", "members", "rights"],
      ...["space", "trial", "version"],
    ]);
    expect(one(findings, "members").what).toBe("3");
    expect(one(findings, "version").what).toContain("etcd 3.");
    await until("nothing is left", async () => {
      return (await three.servers[0]!.ctl("get", "--prefix", "holdfast/")).trim() === "";
    });
    expect(await three.servers[0]!.ctl("lease", "list")).toContain("found 0 leases");
  });

  test("finds a single member, and one of three", async () => {
    const alone = await examineStore(server.url);
    expect(ofLevel(alone, "danger")).toEqual([]);
    expect(ofLevel(alone, "note")).toEqual(["members"]);
    expect(one(alone, "members").what).toContain("a cluster of one");
    const [first] = three.servers;
    const named = await examineStore(first!.url);
    expect(ofLevel(named, "danger")).toEqual([]);
    expect(one(named, "members")).toMatchObject({
      level: "note",
      what: expect.stringContaining("one endpoint of a cluster of 3"),
    });
    for (const each of three.servers) expect(one(named, "members").advice).toContain(hostOf(each));
  });

  test("finds a cluster of two", async () => {
    const { servers } = await lab.etcd({ nodes: 3 });
    const [first, second, third] = servers as [EtcdServer, EtcdServer, EtcdServer];
    await first.ctl("member", "remove", await idOf(first, third));
    const url = `etcd://${hostOf(first)},${hostOf(second)}`;
    await until("it has a leader", async () => /"health":"true"/.test(await health(first)));
    const findings = await examineStore(url);
    expect(ofLevel(findings, "danger")).toEqual([]);
    expect(one(findings, "members").what).toContain("a cluster of 2: it can do without 0");
  });

  async function idOf(asked: EtcdServer, member: EtcdServer): Promise<string> {
    const lines = (await asked.ctl("member", "list")).split("\n");
    return lines.find((line) => line.includes(hostOf(member)))!.split(",")[0]!;
  }

  const health = (of: EtcdServer): Promise<string> =>
    fetch(`http://${hostOf(of)}/health`).then(
      (answer) => answer.text(),
      () => "",
    );

  test("finds a leader that changes meanwhile", async () => {
    let done = false;
    // An examination takes a moment, in which the leader may happen to stay.
    const noticed = until("it is noticed", async () =>
      ofLevel(await examineStore(three.url), "danger").includes("elections"),
    ).finally(() => {
      done = true;
    });
    while (!done) {
      const leader = await three.leader().catch(() => null);
      const to = three.servers.find((each) => each !== leader)!;
      const id = await idOf(three.servers[0]!, to);
      await leader?.ctl("move-leader", id).catch(() => {});
    }
    await noticed;
  });

  describe("finds about rights", () => {
    let guarded: EtcdServer;
    const ROLES = { none: null, reader: "read", writer: "write", app: "readwrite" } as const;
    beforeAll(async () => {
      guarded = (await lab.etcd({ flags: { "bcrypt-cost": "4" } })).servers[0]!;
      await guarded.ctl("user", "add", "root:sesame");
      await guarded.ctl("user", "grant-role", "root", "root");
      for (const [name, right] of Object.entries(ROLES)) {
        await guarded.ctl("user", "add", `${name}:sesame`);
        await guarded.ctl("role", "add", name);
        if (right !== null) {
          await guarded.ctl(
            ...["role", "grant-permission", name, "--prefix=true", right, "holdfast/"],
          );
        }
        await guarded.ctl("user", "grant-role", name, name);
      }
      await guarded.ctl("auth", "enable");
    });
    const as = (user: string): string => guarded.url.replace("//", `//${user}:sesame@`);

    test("no danger for a user with exactly the rights that are needed", async () => {
      const findings = await examineStore(as("app"));
      expect(ofLevel(findings, "danger")).toEqual([]);
      expect(ofLevel(findings, "unknown")).toEqual([]);
      expect(one(findings, "access").what).toBe(
        "the cluster lets nobody in without a user or a certificate",
      );
      expect(JSON.stringify(findings)).not.toContain("sesame");
    });

    test.each([
      ["none", /the user "none" was not able to read \(permission denied/],
      ["reader", /the user "reader" was not able to write \(permission denied/],
      ["writer", /the user "writer" was not able to read \(permission denied/],
    ])("too few rights: %s", async (user, what) => {
      const findings = await examineStore(as(user));
      expect(ofLevel(findings, "danger").sort()).toEqual(["rights", "trial"]);
      expect(one(findings, "rights")).toMatchObject({
        what: expect.stringMatching(what),
        advice: "etcdctl role grant-permission ROLE --prefix=true readwrite holdfast/",
      });
    });

    test("nothing with a wrong password, which is an error: the server can't be used at all", async () => {
      await expect(examineStore(guarded.url.replace("//", "//app:wrong@"))).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
        message: expect.stringContaining("wrong password"),
      });
    });
  });

  describe.concurrent("finds on servers of their own", () => {
    test("a member that is down; then a second, and no leader", async () => {
      const { servers, url } = await lab.etcd({ nodes: 3 });
      await servers[0]!.kill();
      // By then the election, which is another finding, is over.
      await until("it has a leader", async () => /"health":"true"/.test(await health(servers[1]!)));
      const away = await examineStore(url);
      expect(ofLevel(away, "danger")).toEqual(["endpoints"]);
      expect(one(away, "endpoints")).toMatchObject({
        where: hostOf(servers[0]!),
        what: expect.stringMatching(/nothing listens there.*if another fails/),
      });
      await servers[1]!.kill();
      const leaderless = await examineStore(url);
      expect(ofLevel(leaderless, "danger")).toEqual(
        expect.arrayContaining(["endpoints", "leader", "trial"]),
      );
      expect(leaderless.map(({ about }) => about)).not.toContain("rights");
      expect(one(leaderless, "leader").what).toContain("there is none");
      expect(one(leaderless, "trial").what).toMatch(/^nothing can be locked: .*no leader/);
      expect(one(leaderless, "members").level).toBe("unknown");
      await servers[2]!.kill();
    });

    test("a quota that is used up", async () => {
      const small = (await lab.etcd({ flags: { "quota-backend-bytes": "200000" } })).servers[0]!;
      const filling = async (): Promise<boolean> =>
        small.ctl("put", "fill", "x".repeat(60_000)).then(
          () => false,
          () => true,
        );
      await until("it is full", filling);
      const findings = await examineStore(small.url);
      expect(ofLevel(findings, "danger").sort()).toEqual(["space", "trial", "writes"]);
      expect(one(findings, "space").what).toContain("NOSPACE");
      expect(one(findings, "writes").what).toContain("database space exceeded");
      await small.kill();
    });

    test("a server that is open to others, by what it advertises or by the URL", async () => {
      const flags = { "advertise-client-urls": "http://192.0.2.1:2379" };
      const wide = (await lab.etcd({ flags })).servers[0]!;
      const findings = await examineStore(wide.url.replace("//", "//app:secret@"));
      expect(ofLevel(findings, "danger")).toEqual(["access"]);
      expect(one(findings, "access").what).toMatch(/at 192\.0\.2\.1:2379.*"app", is not checked/);
      expect(JSON.stringify(findings)).not.toContain("secret");
      await wide.kill();
      // A name of this machine that does not look like one.
      const named = await examineStore(`etcd://127.1:${server.port}`);
      expect(ofLevel(named, "danger")).toEqual(["access"]);
      expect(ofLevel(named, "note")).toEqual(["members", "transport"]);
    });
  });

  test("prints its findings on the command line", async () => {
    const ended = await holdfast(makeFolder(), ["doctor", "--store", server.url]);
    expect(ended).toMatchObject({ code: 0, stderr: "" });
    expect(ended.stdout).toContain("\n  note     members      a cluster of one");
    expect(ended.stdout).toContain("\n  ok       trial        a name was taken, waited for");
    const wrong = await holdfast(makeFolder(), ["doctor", "--store", `${server.url}?cluster`]);
    expect(wrong.stderr).toContain('no option "cluster"');
  });

  // Not concurrent: a write must be slow because of the disk, not because the machine is busy.
  describe.concurrent("slow and silent servers", () => {
    test("slow writes are a finding", async () => {
      await using proxy = await TcpProxy.open(server);
      await proxy.delay(110, "to-client").inject();
      const findings = await examineStore(`etcd://${hostOf(proxy)}`);
      expect(ofLevel(findings, "danger")).toEqual([]);
      expect(ofLevel(findings, "note")).toContain("latency");
      expect(one(findings, "latency").what).toMatch(/a write takes 1\d\d\.\d ms/);
    });

    test("a server that is not there or never replies is unavailable", async () => {
      const { servers } = await lab.etcd();
      await servers[0]!.pause();
      const nobody = `etcd://127.0.0.1:${await freePort()}`;
      for (const url of [nobody, servers[0]!.url]) {
        const failed = examineStore(url).catch((error: unknown) => error);
        const ended = await Promise.race([failed, pause(9_000, "it hangs")]);
        expect(ended).toMatchObject({ code: "STORE_UNAVAILABLE" });
      }
      await servers[0]!.kill();
    });
  });
});
