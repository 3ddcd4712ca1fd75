import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../src/verify/lab/lab.js";
import { describeWith } from "../support/needs.js";
import { startSentinel } from "../support/sentinel.js";
import { type AdvisedCode, commands, needsServer, programs, withCheck } from "./codes.js";
import { Playground } from "./playground.js";

/** One program, and one command, for each rule and store, and one for each fence and each URL: these don't depend on each other. */
const seen = new Set<string>();
const [onServers, inShell] = [programs, commands].map((all) =>
  all.filter(needsServer).filter(({ rule, store, language, text }) => {
    const fence = /holdfast\/fence\/[\w-]+/.exec(text)?.[0] ?? "";
    const place = `${language} ${rule} ${store ?? text}`;
    const url = /\b\w+:\/\/127\.[^"'?]*/.exec(text)?.[0] ?? "";
    const isNew = [place, fence, url].some((one) => !seen.has(one));
    seen.add(place).add(fence).add(url);
    return isNew;
  }),
) as [AdvisedCode[], AdvisedCode[]];

describeWith(
  ["redis", "postgres", "etcd", "zookeeper"],
  "advised code that needs a server runs",
  () => {
    let lab: Lab;
    let playground: Playground;
    let sentinel: Awaited<ReturnType<typeof startSentinel>>;
    let addresses: (readonly [string, string])[];
    beforeAll(async () => {
      playground = await Playground.open();
      lab = await Lab.open();
      const at = ({ address, port }: { address: string; port: number }): string =>
        `${address}:${port}`;
      const own = (port: number, address: string) => [`127.0.0.1:${port}`, address] as const;
      const [redis, nodes, postgres, etcd, zookeeper] = await Promise.all([
        lab.redis(),
        lab.redisNodes(3),
        lab.postgres(),
        lab.etcd({ nodes: 3 }),
        // The lab's own limit of 4 s would end sessions of programs that a busy machine delays.
        lab.zookeeper({ nodes: 3, config: { maxSessionTimeout: "60000" } }),
      ]);
      // For replicas=1.
      const replica = await lab.redis({ replicaOf: redis });
      await replica.synced();
      sentinel = await startSentinel(lab, "mymaster", redis, replica);
      addresses = [
        own(6379, at(redis)),
        ...nodes.map((node, i) => own(7001 + i, at(node))),
        ["postgres://app:secret@127.0.0.1:5432/app", postgres.url],
        ...[26379, 26380, 26381].map((port) => own(port, `127.0.0.1:${sentinel.port}`)),
        ...[2379, 22379, 32379].map((port, i) => own(port, at(etcd.servers[i]!))),
        ...[2181, 2182, 2183].map((port, i) => own(port, at(zookeeper.servers[i]!))),
      ];
    }, 120_000);
    afterAll(async () => {
      await sentinel?.stop();
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
