import { readFileSync, symlinkSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { EtcdServer } from "../../src/verify/lab/etcd.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { build, runNode } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";

const path = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));
const page = readFileSync(path("../../docs/fences.md"), "utf8");
/** The blocks whose comment names this test. */
const blocks = page
  .split("<!-- run by test/fence/etcd-docs.test.ts")
  .slice(1)
  .map((after) => /^```js\n(.*?)^```/ms.exec(after)![1]!);
const blockWith = (word: string): string => blocks.find((code) => code.includes(word))!;

describeWith(["etcd"], "the code of the page on fences runs on etcd", () => {
  let lab: Lab;
  let server: EtcdServer;
  let built: ReturnType<typeof build>;

  beforeAll(async () => {
    lab = await Lab.open();
    server = (await lab.etcd()).servers[0]!;
    built = build();
    symlinkSync(path("../../node_modules"), built.file("node_modules"));
  });
  afterAll(async () => {
    built?.remove();
    await lab?.close();
  });

  /** The block as it stands, except for the addresses and the location of this package. */
  const run = (code: string): ReturnType<typeof runNode> =>
    runNode(
      code
        .replace("127.0.0.1:2379", `${server.address}:${server.port}`)
        .replace("redis://127.0.0.1:6379", "memory:")
        .replaceAll(/"holdfast(?:\/(\w+)\/(\w+))?"/g, (_, folder?: string, name?: string) => {
          const file = folder === "stores" ? `${folder}/${name}/index.js` : `${folder}/${name}.js`;
          return JSON.stringify(built.file(folder === undefined ? "index.js" : file));
        }),
    );

  test("etcdFence: the write and the highest token are in etcd", async () => {
    expect(await run(blockWith("etcdFence("))).toMatchObject({ code: 0, err: "" });
    expect(await server.ctl("get", "--print-value-only", "stock/hat")).toMatch(/^6\s*$/);
    expect(await server.ctl("get", "--print-value-only", "holdfast/fence/stock:hat")).toMatch(
      /^1:\d{20}\s*$/,
    );
  });

  test("guardTxn: the write is in etcd", async () => {
    await server.ctl("del", "stock/hat");
    expect(await run(blockWith("guardTxn("))).toMatchObject({ code: 0, err: "" });
    expect(await server.ctl("get", "--print-value-only", "stock/hat")).toMatch(/^6\s*$/);
  });
});
