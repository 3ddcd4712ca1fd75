import { expect, onTestFinished, test } from "vitest";
import { examineStore } from "../../../src/examine.js";
import type { EtcdServer } from "../../../src/verify/lab/etcd.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";

const fieldOf = async (server: EtcdServer, field: string): Promise<string> => {
  const status = await server.ctl("endpoint", "status", "--write-out=fields");
  return new RegExp(`"${field}" : "?([^"\\n]+)`).exec(status)![1]!;
};
const keysOf = (server: EtcdServer): Promise<string> =>
  server.ctl("get", "refused", "--prefix", "--keys-only", "--consistency=s");

describeWith(["etcd"], "etcd, without our code", () => {
  test("3.4: a member that is killed after NOSPACE comes back with keys that the others refused, and the doctor finds it", async () => {
    const lab = await Lab.open();
    onTestFinished(() => lab.close());
    const { servers, url } = await lab.etcd({ nodes: 3 });
    const [one, two, three] = servers as [EtcdServer, EtcdServer, EtcdServer];
    const isFlawed = (await fieldOf(one, "Version")).startsWith("3.4.");
    await one.ctl("put", "old", "value");
    await one.raiseNoSpace();
    // A deletion takes no space, and is the last step that the members note as executed.
    await one.ctl("del", "old");
    for (const key of ["refused/1", "refused/2"])
      await expect(one.ctl("put", key, "value")).rejects.toThrow(/space exceeded/);
    await one.ctl("alarm", "disarm");
    const applied = await fieldOf(one, "RaftAppliedIndex");
    for (const server of servers)
      await until(
        "it has disarmed",
        async () => (await fieldOf(server, "RaftAppliedIndex")) === applied,
      );
    // A member writes to its disk every 100 ms; another put after that would hide the flaw.
    await until("the alarm is gone from the disk of a member", async () => {
      await two.kill();
      await two.start();
      return (await keysOf(two)) !== "" || !isFlawed;
    });
    const others = await Promise.all([one, three].map(keysOf));
    expect(others).toEqual(["", ""]);
    const findings = await examineStore(url);
    expect(findings.filter(({ about }) => about === "data")).toEqual([
      expect.objectContaining({ level: isFlawed ? "danger" : "ok" }),
    ]);
  });
});
