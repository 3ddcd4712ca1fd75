import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { openStore } from "../../../src/connect.js";
import { connect, type Locks } from "../../../src/index.js";
import { recordOf } from "../../../src/stores/quorum/keys.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { holdfast, makeFolder } from "../../cli/helpers.js";
import { describeWith } from "../../support/needs.js";
import { redlockUrl } from "../../support/quorum.js";
import { claimOf } from "../../support/redis.js";
import { until } from "../../support/worker.js";

describeWith(["redis"], "the nodes of a quorum that differ", () => {
  let lab: Lab;
  let servers: RedisServer[];
  let url: string;
  beforeAll(async () => {
    lab = await Lab.open();
    servers = await Promise.all([1, 2, 3].map(() => lab.redis()));
    url = redlockUrl(servers);
  });
  afterAll(() => lab.close());

  async function open(holder: string): Promise<Locks> {
    const locks = await connect(url, { ttl: "30s", holder });
    onTestFinished(() => locks.close().catch(() => {}));
    return locks;
  }

  const key = (name: string): string => recordOf(`default:${name}`);

  /** Moves the record of a name to another one, on one node. */
  async function plant(server: RedisServer, from: string, to: string): Promise<void> {
    expect(await server.cli("copy", key(from), key(to), "replace")).toBe("1");
  }

  test("have no notes while all agree", async () => {
    const locks = await open("me");
    await locks.acquire("agreed");
    await until("all have it", async () => {
      const info = await locks.inspect("agreed");
      return info !== null && info.notes === undefined;
    });
    expect(await locks.inspect("agreed")).toMatchObject({ holders: [{ holder: "me" }] });
    expect(await locks.inspect("free")).toBeNull();
    const { stdout } = await holdfast(makeFolder(), ["inspect", "agreed", "--store", url]);
    expect(stdout).not.toContain("note");
    expect(stdout).toContain("waiters   are not known to this store");
  });

  test("are named by inspect and list: one that lacks the record, one that has another", async () => {
    const one = await open("one");
    await one.acquire("first");
    // A client that is not Holdfast's can have any label.
    const stranger = await openStore(url);
    onTestFinished(() => stranger.close());
    const holder = "t\u001b[2Jwo";
    await stranger.claim(claimOf("default:second", { holder, ttlMs: 30_000 }), () => {});
    const [a, b] = servers as [RedisServer, RedisServer];
    await until("all have both", async () =>
      (await one.list()).every(({ notes }) => notes === undefined),
    );
    await a.cli("del", key("first"));
    await plant(b, "second", "alone");
    await plant(b, "first", "second");
    const notesOf = async (name: string): Promise<readonly string[] | undefined> =>
      (await one.inspect(name))?.notes;
    expect(await notesOf("first")).toEqual([`on ${a.url} nobody holds it`]);
    expect(await notesOf("second")).toEqual([`on ${b.url} one holds it, unlike on a majority`]);
    const alone = [`on ${b.url} t\u001b[2Jwo holds it, on no majority that answers`];
    expect(await one.inspect("alone")).toMatchObject({ holders: [], notes: alone });
    expect((await one.list()).find(({ name }) => name === "alone")).toMatchObject({ notes: alone });

    const folder = makeFolder();
    const inspected = await holdfast(folder, ["inspect", "alone", "--store", url]);
    expect(inspected.stdout).toContain("nobody holds it");
    expect(inspected.stdout).toContain(
      `note      on ${b.url} t?[2Jwo holds it, on no majority that answers`,
    );
    const listed = await holdfast(folder, ["ls", "--store", url]);
    expect(listed.stderr).toContain(`"first": on ${a.url} nobody holds it`);
    expect(listed.stderr).toContain(`"alone": on ${b.url} t?[2Jwo holds it`);
    const json = await holdfast(folder, ["inspect", "alone", "--store", url, "--json"]);
    expect(JSON.parse(json.stdout)).toMatchObject({ notes: alone });
    for (const { stdout, stderr } of [inspected, listed, json]) {
      expect(stdout + stderr).not.toContain("\u001b");
    }
    // It may belong to an attempt that is under way.
    expect(await one.forceRelease("alone", { why: "a remainder" })).toEqual([]);
    expect(await b.cli("exists", key("alone"))).toBe("1");
  });

  test("are named if they do not answer", async () => {
    const locks = await open("me");
    await locks.acquire("held");
    await servers[2]!.kill();
    await until("it is down", async () => (await locks.inspect("held"))?.notes !== undefined);
    const notes = [`${servers[2]!.url} did not answer`];
    expect(await locks.inspect("held")).toMatchObject({ holders: [{ holder: "me" }], notes });
    expect(await locks.inspect("free")).toBeNull();
    const { stderr } = await holdfast(makeFolder(), ["ls", "--store", url]);
    expect(stderr.match(/did not answer/g)).toHaveLength(1);
  });
});
