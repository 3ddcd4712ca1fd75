import { readdirSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { kindOf, parseStoreUrl } from "../../src/stores/registry.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { freePort } from "../../src/verify/lab/ports.js";
import { describeWith } from "../support/needs.js";
import { holdfast, makeFolder } from "./helpers.js";

describe("holdfast setup", () => {
  it.each(["sqlite:locks.db", "redis://h"])("%s needs none, and nothing is made", async (url) => {
    const folder = makeFolder();
    const [{ code, stdout, stderr }, printed] = await Promise.all([
      holdfast(folder, ["setup", "--store", url]),
      holdfast(folder, ["setup", "--print", "--store", url]),
    ]);
    expect(stdout).toMatch(/^\S+ needs no set-up: the first lock makes whatever it needs\.\n$/);
    expect([code, stderr]).toEqual([0, ""]);
    expect(printed.stderr).toContain("needs no set-up");
    expect([printed.code, printed.stdout]).toEqual([0, ""]);
    expect(readdirSync(folder)).toEqual([]);
  });

  it.each(["etcd://h", "memory:"])("%s has none to run", (url) => {
    expect(kindOf(parseStoreUrl(url)).setup).toBeUndefined();
  });

  it("--print connects to nothing, and prints one transaction", async () => {
    const url = `postgres://me:secret@127.0.0.1:${await freePort()}/app?schema=locks`;
    const args = ["setup", "--store", url, "--print"];
    const { code, stdout, stderr } = await holdfast(makeFolder(), args);
    expect(stdout).toMatch(/^BEGIN;\n.*CREATE SCHEMA "locks";.*\nCOMMIT;\n$/s);
    expect(stdout).not.toMatch(/secret|GRANT/);
    expect([code, stderr]).toEqual([0, ""]);
    const granted = await holdfast(makeFolder(), [...args, "--grant", "web app"]);
    expect(granted.stdout).toContain('\nGRANT USAGE ON SCHEMA "locks" TO "web app";\n');

    const down = await holdfast(makeFolder(), ["setup", "--store", url]);
    expect(down.stderr).toMatch(/^holdfast: can't connect to PostgreSQL at .*ECONNREFUSED/);
    expect(down.stdout + down.stderr).not.toContain("secret");
    expect(down.code).toBe(69);
  });
});

describeWith(["postgres"], "holdfast setup on PostgreSQL", () => {
  it("says what it has made, and what a user without rights can do", async () => {
    await using lab = await Lab.open();
    const server = await lab.postgres();
    await server.sql("CREATE ROLE app LOGIN PASSWORD 'sesame'");
    const user = server.url.replace(/\/\/.*@/, "//app:sesame@");
    const run = (url: string, ...args: readonly string[]) =>
      holdfast(makeFolder(), ["setup", ...args], { HOLDFAST_STORE: url });
    const where = `postgres://${server.address}:${server.port}/postgres`;

    const refused = await run(user);
    expect(refused.stderr).toMatch(/^holdfast: the user at .* lacks a right .*holdfast setup/);
    expect(refused.code).toBe(69);
    const early = await run(server.url, "--grant", "nobody");
    expect(early.stderr).toContain('has no role "nobody": make it with CREATE ROLE');
    expect(early.code).toBe(64);
    const made = await run(server.url);
    expect([made.code, made.stdout]).toEqual([0, `Made the schema holdfast in ${where}.\n`]);
    const again = await run(server.url, "--grant", "app");
    expect(again.stdout).toBe(
      `Nothing to make: the schema holdfast was in ${where} already.\n"app" has the rights that locks and fences need.\n`,
    );
    expect((await run(user)).code).toBe(0);
    const job = ["run", "job", "--", "true"];
    expect((await holdfast(makeFolder(), job, { HOLDFAST_STORE: user })).code).toBe(0);

    const nobody = await run(server.url, "--grant", "nobody");
    expect(nobody.stderr).toContain('has no role "nobody"');
    expect(nobody.code).toBe(64);
  });
});
