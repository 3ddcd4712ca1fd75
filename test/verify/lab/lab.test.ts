import { existsSync } from "node:fs";
import { createServer, type Server as NetServer } from "node:net";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { Lab, type LabOptions } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import { findFile } from "../../../src/verify/lab/requirements.js";
import { LOOPBACK, type Site } from "../../../src/verify/lab/server.js";
import { describeWith } from "../../support/needs.js";

async function open(options?: LabOptions): Promise<Lab> {
  const lab = await Lab.open(options);
  onTestFinished(() => lab.close());
  return lab;
}

async function taken(): Promise<number> {
  const port = await freePort();
  const taker = await new Promise<NetServer>((resolve) => {
    const server = createServer().listen(port, "127.0.0.1", () => resolve(server));
  });
  onTestFinished(() => void taker.close());
  return port;
}

describeWith(["redis", "etcd", "zookeeper"], "a lab", () => {
  test("does not interfere with other labs", async () => {
    const labs = await Promise.all([open(), open()]);
    const [one, two] = await Promise.all(labs.map((lab) => lab.redis()));
    expect(one!.name).toBe(two!.name);
    expect(one!.port).not.toBe(two!.port);
    await labs[0]!.close();
    expect(await two!.cli("ping")).toBe("PONG");
  });

  test.each(["redis", "etcd", "zookeeper"] as const)(
    "gives %s other ports if someone else has one of them",
    async (kind) => {
      const port = await taken();
      let asked = 0;
      const lab = await open({ freePort: async () => (asked++ === 0 ? port : freePort()) });
      const started = await lab[kind]();
      const server = "servers" in started ? started.servers[0]! : started;
      expect(server.port).not.toBe(port);
      expect(server.name).toBe(`${kind}-1`);
    },
  );

  test("does not take another's Redis on its port for its own", async () => {
    const other = await (await open()).redis();
    let asked = 0;
    const lab = await open({ freePort: async () => (asked++ === 0 ? other.port : freePort()) });
    expect((await lab.redis()).port).not.toBe(other.port);
  });

  test("says so if no port can be had, with the end of the log", async () => {
    const port = await taken();
    const lab = await open({ freePort: async () => port });
    await expect(lab.redis()).rejects.toThrow(
      /^redis-1 did not start: it exited with code 1; its log ends with\n.*Address already in use/s,
    );
  });

  test("says how a server died at its start, and stays usable", async () => {
    const lab = await open();
    await expect(lab.redis({ config: { "no-such-setting": "1" } })).rejects.toThrow(
      /redis-1 did not start: it exited with code 1; its log ends with\n.*no-such-setting/s,
    );
    expect(await (await lab.redis()).cli("ping")).toBe("PONG");
  });

  test("stops waiting for one of three servers when the others have died", async () => {
    const lab = await open();
    const dead: Site = { ...LOOPBACK, command: () => ["sh", "-c", "echo broken; exit 7"] };
    await expect(lab.etcd({ nodes: 3, sites: [LOOPBACK, dead, dead] })).rejects.toThrow(
      /^etcd-[23] did not start: it exited with code 7; its log ends with\nbroken/,
    );
  });

  test("a server that is killed before its process is there does not start", async () => {
    const redis = await (await open()).redis();
    await redis.kill();
    const starting = redis.start();
    await redis.kill();
    await expect(starting).rejects.toThrow(/^redis-1 was killed while it started$/);
    expect(redis.state).toBe("down");
  });

  test.each(["redis-cli", "redis-server"])(
    "says what to install when %s is missing",
    async (program) => {
      const find = (file: string): string | null => (file === program ? null : findFile(file));
      const lab = await open({ find });
      await expect(lab.redis()).rejects.toThrow(
        new RegExp(`^${program} is not installed \\(.*redis-(server|tools).*\\)$`),
      );
    },
  );

  test("runs a server on a site: with its command, settings and address", async () => {
    const lab = await open();
    const site: Site = {
      address: "127.0.0.2",
      command: (argv) => ["env", "WRAPPED=yes", ...argv],
      env: { SITE: "here" },
      folder: join(lab.folder, "disk"),
    };
    const redis = await lab.redis({ site, persistence: "always" });
    expect(redis.url).toBe(`redis://127.0.0.2:${redis.port}`);
    expect(await redis.cli("config", "get", "dir")).toBe(`dir\n${lab.folder}/disk/redis-1`);
    expect(await redis.cli("ping")).toBe("PONG");
    await redis.cli("set", "key", "value");
    await redis.wipe();
    expect(await redis.cli("get", "key")).toBe("");
    await redis.kill();
    expect(existsSync(join(lab.folder, "disk", "redis-1"))).toBe(true);

    const elsewhere = { ...site, folder: "/var/tmp" };
    await expect(lab.redis({ site: elsewhere })).rejects.toThrow("would be left behind");
  });
});
