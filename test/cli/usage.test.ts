import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { holdfast, makeFolder } from "./helpers.js";

describe("help and version", () => {
  it("prints the version of package.json", async () => {
    const manifest = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
    const { code, stdout } = await holdfast(makeFolder(), ["--version"]);
    expect(code).toBe(0);
    expect(stdout).toContain(`holdfast/${JSON.parse(manifest).version} `);
  });

  it("lists the commands with examples", async () => {
    const { code, stdout, stderr } = await holdfast(makeFolder(), ["--help"]);
    expect(code).toBe(0);
    for (const command of ["run <name>", "ls", "inspect <name>", "release <name>", "demo"]) {
      expect(stdout).toContain(`\n  ${command}`);
    }
    expect(stdout).toContain("Examples:");
    expect(stderr).toBe("");
  });

  it.each(["run", "ls", "inspect", "release", "demo"])(
    "explains %s with an example",
    async (command) => {
      const { code, stdout } = await holdfast(makeFolder(), [command, "--help"]);
      expect(code).toBe(0);
      expect(stdout).toContain(`Usage:\n  $ holdfast ${command}`);
      expect(stdout).toContain(`Examples:\n  $ holdfast ${command}`);
    },
  );
});

describe("wrong usage ends with 64 and says what is wrong", () => {
  const cases: [string[], string][] = [
    [["nosuch"], 'there is no command "nosuch"'],
    [["--nosuch"], "there is no option --nosuch"],
    [["run"], "run needs a NAME"],
    [["run", "x"], "needs a command after --"],
    [["run", "x", "true"], '"true" is one argument too many; write -- before'],
    [["run", "x", "--no-such", "--", "true"], "there is no option --such"],
    [["run", "x", "--at-leest", "1s", "--", "true"], "there is no option --at-leest"],
    [["run", "x", "--ttl", "--", "true"], "--ttl needs a value"],
    [["run", "x", "--ttl", "30", "--", "true"], '--ttl is "30"; it must be a number with a unit'],
    [["run", "x", "--wait=", "--", "true"], '--wait is ""'],
    [["run", "x", "--ttl", "1ms", "--", "true"], "from 20 ms"],
    [["run", "x", "--note", "a", "--note", "b", "--", "true"], "--note is given 2 times"],
    [["run", "x", "--if-unavailable", "hope", "--", "true"], "it must be fail or run"],
    [["run", "x", "--namespace", "a b", "--", "true"], 'namespace is "a b"'],
    [["run", "", "--", "true"], 'the name is ""'],
    [["run", "x", "--store", "memory:", "--", "true"], "would keep nobody out"],
    [["run", "x", "--store", "nosuch:x", "--", "true"], 'unknown scheme "nosuch:"'],
    [["ls", "--store", "etcd://localhost"], "not in this version"],
    [["inspect", "a", "b"], '"b" is one argument too many'],
    [["release", "x"], "--force"],
  ];

  it.each(cases)("%j", async (args, message) => {
    const { code, stdout, stderr } = await holdfast(makeFolder(), args);
    expect(stderr).toContain(message);
    expect(stderr).toContain("--help)");
    expect(stdout).toBe("");
    expect(code).toBe(64);
  });

  it("a URL's password is never repeated", async () => {
    for (const args of [
      ["ls", "redis://me:secret@host"],
      ["ls", "--store", "redis://me:secret@host"],
      ["run", "x", "--store", "redis://me:secret@host:99999999", "--", "true"],
    ]) {
      const { code, stdout, stderr } = await holdfast(makeFolder(), args);
      expect(code).toBe(64);
      expect(stdout + stderr).not.toContain("secret");
    }
  });
});
