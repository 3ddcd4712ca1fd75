import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { examineStore } from "../../../src/examine.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import { ofLevel, one } from "../../support/findings.js";
import { describeWith } from "../../support/needs.js";
import { leaderOf, others } from "../../support/scene.js";
import { addressOf, type Ensemble, serves } from "../../support/zookeeper-scene.js";

describeWith(["zookeeper"], "the doctor on ensembles of ZooKeeper", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab?.close());

  const start = async (nodes: 1 | 3, config: Record<string, string> = {}): Promise<Ensemble> => {
    const ensemble = await lab.zookeeper({ nodes, config });
    onTestFinished(() => Promise.all(ensemble.servers.map((each) => each.kill())).then(() => {}));
    for (const each of nodes === 3 ? ensemble.servers : []) await serves(each);
    return ensemble;
  };

  test("three servers: all well, one named, one down, two down", async () => {
    const three = await start(3, { maxSessionTimeout: "60000" });
    const well = await examineStore(three.url);
    expect(ofLevel(well, "danger")).toEqual([]);
    expect(ofLevel(well, "unknown")).toEqual([]);
    expect(one(well, "ensemble")).toMatchObject({ level: "ok", what: "3 voting servers" });
    expect(one(well, "servers").what).toBe("all 3 answer");
    expect(well.find(({ about }) => about === "session")).toMatchObject({
      level: "ok",
      what: "it lasts 60000 ms at most, so leases can have a ttl of up to 35294 ms",
    });
    const leader = await leaderOf(three);
    const [second, third] = others(three, leader);
    const alone = await examineStore(leader.url);
    expect(one(alone, "ensemble").what).toContain("names 1 of 3");
    await second!.kill();
    const away = await examineStore(three.url);
    expect(ofLevel(away, "danger")).toEqual(["servers"]);
    expect(one(away, "servers").where).toBe(addressOf(second!));
    await third!.kill();
    await expect(examineStore(three.url)).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
  }, 60_000);

  test("a session timeout below two ticks, and a longest one below the default ttl", async () => {
    const short = await start(1, { minSessionTimeout: "399" });
    const findings = await examineStore(short.url);
    expect(ofLevel(findings, "danger")).toEqual(["session"]);
    const about = findings.filter(({ about }) => about === "session");
    expect(about.map(({ level }) => level)).toEqual(["note", "danger"]);
    // The lab's tick is 200 ms, and 20 ticks the longest timeout by default.
    expect(about[0]!.what).toContain("it lasts 4000 ms at most");
    expect(about[1]!.what).toContain("minSessionTimeout is 399 ms with a tickTime of 200 ms");
  }, 30_000);

  test("servers that answer srvr alone, as by default", async () => {
    const usual = await start(1, { "4lw.commands.whitelist": "srvr" });
    const found = await examineStore(usual.url);
    expect(ofLevel(found, "danger")).toEqual([]);
    expect(ofLevel(found, "unknown")).toEqual(["session"]);
    expect(one(found, "version").level).toBe("ok");
  }, 30_000);

  test("a server that is not there, or never replies, is unavailable", async () => {
    const { servers } = await start(1);
    await servers[0]!.pause();
    for (const url of [`zookeeper://127.0.0.1:${await freePort()}`, servers[0]!.url]) {
      const failed = await examineStore(url).catch((error) => error);
      expect(failed).toMatchObject({ code: "STORE_UNAVAILABLE" });
    }
    await servers[0]!.resume();
  }, 30_000);
});
