import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../src/verify/lab/lab.js";
import { describeWith } from "../support/needs.js";
import { type AdvisedCode, commands, needsServer, programs, withCheck } from "./codes.js";
import { Playground } from "./playground.js";

/** One program, and one command, for each rule and store, and one for each fence: the two don't depend on each other. */
const seen = new Set<string>();
const [onServers, inShell] = [programs, commands].map((all) =>
  all.filter(needsServer).filter(({ rule, store, language, text }) => {
    const fence = /holdfast\/fence\/[\w-]+/.exec(text)?.[0] ?? "";
    const place = `${language} ${rule} ${store ?? text}`;
    const isNew = [place, fence].some((one) => !seen.has(one));
    seen.add(place).add(fence);
    return isNew;
  }),
) as [AdvisedCode[], AdvisedCode[]];

describeWith(
  ["redis", "postgres", "etcd", "zookeeper"],
  "advised code that needs a server runs",
  () => {
    let lab: Lab;
    let playground: Playground;
    let addresses: (readonly [string, string])[];
    beforeAll(async () => {
      playground = await Playground.open();
      lab = await Lab.open();
      const at = ({ address, port }: { address: string; port: number }): string =>
        `${address}:${port}`;
      const [redis, nodes, postgres, etcd, zookeeper] = await Promise.all([
        lab.redis(),
        lab.redisNodes(3),
        lab.postgres(),
        lab.etcd(),
        // The lab's own limit of 4 s would end sessions of programs that a busy machine delays.
        lab.zookeeper({ config: { maxSessionTimeout: "60000" } }),
      ]);
      // For replicas=1.
      await (await lab.redis({ replicaOf: redis })).synced();
      addresses = [
        ["127.0.0.1:6379", at(redis)],
        ...nodes.map((node, i) => [`127.0.0.1:700${i + 1}`, at(node)] as const),
        ["postgres://app:secret@127.0.0.1:5432/app", postgres.url],
        ["127.0.0.1:2379", at(etcd.servers[0]!)],
        ["127.0.0.1:2181", at(zookeeper.servers[0]!)],
      ];
    }, 120_000);
    afterAll(async () => {
      await lab?.close();
      await playground?.[Symbol.asyncDispose]();
    });

    test("on every store and with every fence", () => {
      expect(onServers.length).toBeGreaterThan(20);
      expect(inShell.length).toBeGreaterThan(15);
    });
    test.concurrent.each(inShell)("$name in a shell", async (code) => {
      expect(await playground.runInShell(code, addresses)).toMatch(/^\d+\n$/);
    });
    test.concurrent.each(onServers)("$name", async (code) =>
      playground.run(withCheck(code), addresses),
    );
  },
);
