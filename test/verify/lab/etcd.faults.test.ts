import { afterAll, beforeAll, expect, test } from "vitest";
import type { ServerCluster } from "../../../src/verify/lab/cluster.js";
import type { EtcdServer } from "../../../src/verify/lab/etcd.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { describeWith } from "../../support/needs.js";
import { newLeader } from "./leader.js";
import { verbs } from "./verbs.js";

describeWith(["etcd"], "etcd in the lab", () => {
  let lab: Lab;
  let etcd: EtcdServer;
  let three: ServerCluster<EtcdServer>;
  const read = async (server: EtcdServer): Promise<string | null> =>
    (await server.ctl("get", "--print-value-only", "key")).trim() || null;
  beforeAll(async () => {
    lab = await Lab.open();
    const [one, cluster] = await Promise.all([lab.etcd(), lab.etcd({ nodes: 3 })]);
    etcd = one.servers[0]!;
    three = cluster;
  });
  afterAll(() => lab.close());

  verbs({
    server: () => etcd,
    write: (value) => etcd.ctl("put", "key", value),
    read: () => read(etcd),
  });

  test("has one leader of three; when that is killed another leads, and it comes back with what it missed", async () => {
    expect(three.url).toBe(`etcd://${three.servers.map((s) => `127.0.0.1:${s.port}`).join(",")}`);
    const first = await three.leader();
    const terms = await Promise.all(three.servers.map((server) => server.leads()));
    expect(terms.filter((term) => term !== null)).toHaveLength(1);
    await first.kill();
    const second = await newLeader(three, first);
    await second.ctl("put", "key", "missed");
    await first.start();
    expect(await read(first)).toBe("missed");
  });

  test("has no leader that is paused", async () => {
    const first = await three.leader();
    await first.pause();
    await newLeader(three, first);
    await first.resume();
  });

  test("gives a wiped member the data of the others when it joins again", async () => {
    const leader = await three.leader();
    await leader.ctl("put", "key", "of all");
    await leader.wipe();
    expect(await read(leader)).toBe("of all");
    expect((await leader.ctl("member", "list")).match(/started/g)).toHaveLength(3);
  });

  test("has no leader in a minority", async () => {
    const [one, two] = three.servers;
    await Promise.all([one!.kill(), two!.kill()]);
    await expect.poll(() => three.leader().catch((error) => error.message)).toMatch("nobody leads");
    await Promise.all([one!.start(), two!.start()]);
    expect(await read(one!)).toBe("of all");
  });
});
