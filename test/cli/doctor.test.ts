import { chmodSync, existsSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { connect } from "../../src/connect.js";
import type { Finding } from "../../src/doctor/finding.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { freePort } from "../../src/verify/lab/ports.js";
import { describeWith, skipUnless } from "../support/needs.js";
import { type Ended, holdfast, makeFolder } from "./helpers.js";

interface Report {
  readonly store: string;
  readonly findings: readonly Finding[];
}

const reportOf = ({ stdout }: Ended): Report => JSON.parse(stdout);

/** Level and subject of each finding that is not ok. */
const trouble = (ended: Ended): string[] =>
  reportOf(ended)
    .findings.filter(({ level }) => level !== "ok")
    .map(({ level, about }) => `${level} ${about}`);

const usedStore = async (): Promise<string> => {
  const folder = makeFolder();
  expect((await holdfast(folder, ["run", "job", "--", "true"])).code).toBe(0);
  return folder;
};

const doctor = (folder: string): Promise<Ended> => holdfast(folder, ["doctor", "--json"]);

describe("the doctor on SQLite", () => {
  it("finds no danger in a file that is used as it should be, and exits with 0", async () => {
    const folder = await usedStore();
    const ended = await holdfast(folder, ["doctor"]);
    expect(ended.stderr).toBe("");
    expect(ended.code).toBe(0);
    const lines = ended.stdout.split("\n");
    expect(lines[0]).toBe(`sqlite:${join(folder, "locks.db")}`);
    expect(ended.stdout).toContain("\n  ok       journal      a write-ahead log\n");
    expect(ended.stdout).toContain("\n  ok       trial        a name was taken, waited for");
    expect(ended.stdout).toMatch(/\n\nNo danger was found\.\n$/);

    const json = await doctor(folder);
    expect(reportOf(json).store).toBe(lines[0]);
    expect(trouble(json)).toEqual([]);
    expect(json.code).toBe(0);
  });

  it("ends with 69 where there is no driver, also before there is a file", async () => {
    const folder = makeFolder();
    const hook = `export const resolve = (name, context, next) => {
      if (/^(node:|@photostructure\\/)sqlite$/.test(name)) throw new Error("not installed");
      return next(name, context);
    };`;
    const dataOf = (code: string): string => `data:text/javascript,${encodeURIComponent(code)}`;
    const register = `import { register } from "node:module"; register(${JSON.stringify(dataOf(hook))});`;
    const env = { NODE_OPTIONS: `--import ${dataOf(register)}` };
    const unused = { HOLDFAST_STORE: "", XDG_STATE_HOME: join(folder, "state") };
    for (const more of [{}, unused]) {
      const ended = await holdfast(folder, ["doctor"], { ...env, ...more });
      expect(ended.stderr).toContain("run npm install @photostructure/sqlite");
      expect([ended.code, ended.stdout]).toEqual([69, ""]);
    }
  });

  it("counts only names that are in use", async () => {
    const folder = await usedStore();
    const locks = await connect(`sqlite:${join(folder, "locks.db")}`);
    await locks.acquire("a");
    await locks.acquire("b");
    await locks.forceRelease("b", { why: "test" });
    expect((await holdfast(folder, ["doctor"])).stdout).toContain("names in use: 1\n");
    await locks.close();
  });

  it("creates no file or folder", async () => {
    const folder = makeFolder();
    const ended = await doctor(folder);
    expect(trouble(ended)).toEqual(["note file"]);
    expect(ended.code).toBe(0);
    expect(readdirSync(folder)).toEqual([]);

    const unused = await holdfast(folder, ["doctor", "--json"], {
      HOLDFAST_STORE: "",
      XDG_STATE_HOME: join(folder, "state"),
    });
    expect(unused.code).toBe(0);
    expect(existsSync(join(folder, "state"))).toBe(false);

    // A file of somebody else's stays as it is.
    const db = await openSqlite(join(folder, "locks.db"));
    db.exec("CREATE TABLE theirs (a)");
    expect(trouble(await doctor(folder))).toEqual(["note journal", "note file"]);
    expect(db.prepare("SELECT name FROM sqlite_schema").all()).toEqual([{ name: "theirs" }]);
    db.close();
  });

  it("exits with 1 for a folder or a file that everybody can write, and for a missing folder", async (context) => {
    skipUnless(context, process.platform !== "win32", "needs permissions as on Unix");
    const folder = await usedStore();
    chmodSync(join(folder, "locks.db"), 0o666);
    const file = await doctor(folder);
    expect(trouble(file)).toEqual(["danger access"]);
    expect(file.stdout).toContain(`chmod o-w ${join(folder, "locks.db")}`);
    expect(file.code).toBe(1);
    chmodSync(join(folder, "locks.db"), 0o600);
    chmodSync(folder, 0o777);
    expect(trouble(await doctor(folder))).toEqual(["danger access"]);
    // Like /tmp: only the owner can delete a file.
    chmodSync(folder, 0o1777);
    expect(trouble(await doctor(folder))).toEqual([]);

    const args = ["doctor", "--store", `sqlite:${join(folder, "none", "locks.db")}`];
    const missing = await holdfast(folder, args);
    expect(missing.stdout).toContain("\n  danger   file         there is no folder");
    expect(missing.stdout).toMatch(/\n\n1 danger\.\n$/);
    expect(missing.code).toBe(1);
  });

  it("exits with 1 for a file that is no database, or of another format", async () => {
    const folder = await usedStore();
    const db = await openSqlite(join(folder, "locks.db"));
    db.exec("UPDATE holdfast_meta SET format = 99");
    db.close();
    const newer = await doctor(folder);
    expect(trouble(newer)).toEqual(["danger file"]);
    expect(newer.stdout).toContain("has format 99");

    const other = makeFolder();
    writeFileSync(join(other, "locks.db"), "this is no database ".repeat(1_000));
    const none = await doctor(other);
    expect(trouble(none)).toEqual(["danger file"]);
    expect(none.stdout).toContain("is not an SQLite database");
    expect(none.code).toBe(1);
  });
});

describe("the doctor", () => {
  it("reports one finding about memory:", async () => {
    const ended = await holdfast(makeFolder(), ["doctor", "--store", "memory:", "--json"]);
    expect(trouble(ended)).toEqual(["note scope"]);
    expect(ended.code).toBe(0);
  });

  it.each([
    [["--store", "consul://localhost"], 'the unknown scheme "consul:"; known: memory: sqlite:'],
    [["--store", "nosuch:x"], 'the unknown scheme "nosuch:"'],
    [["--store", "sqlite:"], "sqlite: needs a file's path"],
    [["--store", "sqlite:x.db?a=1"], 'sqlite: URLs have no option "a"'],
    [["--store", "redis://me:secret@host?nosuch=1"], 'redis: URLs have no option "nosuch"'],
    [["--store", "redis://me:secret@host:99999999"], "is not host:port"],
    [["x"], '"x" is one argument too many'],
  ])("exits with 64 on wrong usage: %j", async (args, message) => {
    const { code, stdout, stderr } = await holdfast(makeFolder(), ["doctor", ...args]);
    expect(stderr).toContain(message);
    expect(stderr).toContain("(see holdfast doctor --help)");
    expect(stderr).not.toContain("secret");
    expect(stdout).toBe("");
    expect(code).toBe(64);
  });
});

describeWith(["redis"], "the doctor on Redis", () => {
  it("reports dangers first, in words and for programs, and never a password", async () => {
    await using lab = await Lab.open();
    const server = await lab.redis({ persistence: "always" });
    await server.cli(
      "acl",
      "setuser",
      "locker",
      "on",
      ">sesame",
      "allkeys",
      "allchannels",
      "+@all",
    );
    const args = ["doctor", "--store", server.url.replace("//", "//locker:sesame@")];
    const well = await holdfast(makeFolder(), args);
    expect(well.stdout.split("\n")[0]).toBe(server.url);
    expect(well.stdout).toMatch(/\n\nNo danger was found\.\n$/);
    expect(well.code).toBe(0);

    await server.cli("config", "set", "maxmemory", "1gb");
    await server.cli("config", "set", "maxmemory-policy", "allkeys-lru");
    const ill = await holdfast(makeFolder(), args);
    expect(ill.stdout.split("\n")[1]).toMatch(
      /^ {2}danger {3}eviction {5}maxmemory-policy is allkeys-lru: when memory is full/,
    );
    expect(ill.stdout.split("\n")[2]).toMatch(/^ {24}Set maxmemory-policy to noeviction/);
    expect(ill.stdout).toMatch(/\n\n1 danger\.\n$/);
    expect(ill.code).toBe(1);
    const json = await holdfast(makeFolder(), [...args, "--json"]);
    expect(trouble(json)).toEqual(["danger eviction"]);
    expect(json.code).toBe(1);

    const wrong = await holdfast(
      makeFolder(),
      args.map((one) => one.replace("sesame", "sesam")),
    );
    expect(wrong.stderr).toContain("WRONGPASS");
    expect(wrong.code).toBe(69);
    for (const { stdout, stderr } of [well, ill, json, wrong]) {
      expect(stdout + stderr).not.toContain("sesam");
    }
  });

  it("exits with 69 when the server is down", async () => {
    const port = await freePort();
    const args = ["doctor", "--store", `redis://127.0.0.1:${port}`];
    const { code, stdout, stderr } = await holdfast(makeFolder(), args);
    expect(stderr).toMatch(/^holdfast: can't connect to Redis at 127\.0\.0\.1:\d+: .*ECONNREFUSED/);
    expect(stdout).toBe("");
    expect(code).toBe(69);
  });
});
