import { beforeEach, expect, test } from "vitest";
import { sellTheLastHat } from "../support/buyer.js";
import { describeWith } from "../support/needs.js";
import { OneZooKeeper } from "../support/zookeeper-store.js";

const PROGRAM = new URL("zookeeper-buyer.mjs", import.meta.url);

describeWith(["zookeeper"], "the last hat, and a buyer that is paused past its lease", () => {
  const zookeeper = OneZooKeeper.forAll();

  beforeEach(async () => {
    const { admin } = zookeeper;
    if ((await admin.exists("/orders")).stat !== null) {
      const { children } = await admin.getChildren("/orders");
      for (const one of children) await admin.delete(`/orders/${one}`);
      await admin.setData("/stock", "1");
    } else {
      await admin.multi([
        { op: "create", path: "/stock", data: "1" },
        { op: "create", path: "/orders" },
      ]);
    }
  });

  const orders = async (): Promise<string[]> =>
    (await zookeeper.admin.getChildren("/orders")).children.sort();

  test("oversold without a fence", { timeout: 60_000 }, async () => {
    expect(await sellTheLastHat(PROGRAM, zookeeper.server.url, "unfenced")).toBe("bought");
    expect(await orders()).toEqual(["Ann", "Bob"]);
  });

  test("right with the fence", { timeout: 60_000 }, async () => {
    expect(await sellTheLastHat(PROGRAM, zookeeper.server.url, "fenced")).toBe("STALE_TOKEN");
    expect(await orders()).toEqual(["Bob"]);
    expect((await zookeeper.admin.getData("/stock")).data.toString()).toBe("0");
  });
});
