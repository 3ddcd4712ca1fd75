import { afterAll, beforeAll, expect, test } from "vitest";
import type { ServerCluster } from "../../../src/verify/lab/cluster.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { ZooKeeperServer } from "../../../src/verify/lab/zookeeper.js";
import { describeWith } from "../../support/needs.js";
import { newLeader } from "./leader.js";
import { verbs } from "./verbs.js";
import { zooGet, zooSet } from "./zookeeper-client.js";

describeWith(["zookeeper"], "ZooKeeper in the lab", () => {
  let lab: Lab;
  let zookeeper: ZooKeeperServer;
  let three: ServerCluster<ZooKeeperServer>;
  beforeAll(async () => {
    lab = await Lab.open();
    const [one, cluster] = await Promise.all([lab.zookeeper(), lab.zookeeper({ nodes: 3 })]);
    zookeeper = one.servers[0]!;
    three = cluster;
  });
  afterAll(() => lab.close());

  verbs({
    server: () => zookeeper,
    write: (value) => zooSet(zookeeper, value),
    read: () => zooGet(zookeeper),
  });

  test("leads itself if it is alone", async () => {
    expect(await zookeeper.leads()).not.toBe(null);
  });

  test("has one leader of three; when that is killed another leads, and it comes back with what it missed", async () => {
    expect(three.url).toMatch(/^zookeeper:\/\/127\.0\.0\.1:\d+(,127\.0\.0\.1:\d+){2}$/);
    const first = await three.leader();
    const terms = await Promise.all(three.servers.map((server) => server.leads()));
    expect(terms.filter((term) => term !== null)).toHaveLength(1);
    await first.kill();
    const second = await newLeader(three, first);
    await zooSet(second, "missed");
    await first.start();
    expect(await zooGet(first)).toBe("missed");
  });

  test("gives a wiped server the data of the others when it joins again", async () => {
    const leader = await three.leader();
    await zooSet(leader, "of all");
    await leader.wipe();
    expect(await zooGet(leader)).toBe("of all");
  });

  test("has no leader in a minority", async () => {
    const [one, two] = three.servers;
    await Promise.all([one!.kill(), two!.kill()]);
    await expect.poll(() => three.leader().catch((error) => error.message)).toMatch("nobody leads");
    await Promise.all([one!.start(), two!.start()]);
    expect(await zooGet(one!)).toBe("of all");
  });
});
