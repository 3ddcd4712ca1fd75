import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { COMMANDS } from "../../src/cli/commands.js";
import { helpText } from "../../src/cli/help.js";
import { holdfast, makeFolder } from "./helpers.js";

describe("help and version", () => {
  it.each(["--version", "-v"])("%s prints the version of package.json", async (option) => {
    const manifest = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
    const { code, stdout } = await holdfast(makeFolder(), [option]);
    expect(code).toBe(0);
    expect(stdout).toContain(`holdfast/${JSON.parse(manifest).version} `);
  });

  it.each(["--help", "-h", "help"])("%s lists the commands with examples", async (option) => {
    const { code, stdout, stderr } = await holdfast(makeFolder(), [option]);
    expect(code).toBe(0);
    for (const command of ["run NAME -- CMD", "elect NAME -- CMD", "ls", "deadlocks", "demo"]) {
      expect(stdout).toContain(`\n  ${command} `);
    }
    expect(stdout).toContain("Examples:");
    expect(stderr).toBe("");
  });

  it.each(COMMANDS)("explains $name with its options and an example", (command) => {
    const text = helpText(command);
    expect(text).toContain(`Usage: holdfast ${command.name}`);
    expect(text).toContain(`Examples:\n  $ holdfast ${command.name}`);
    for (const option of command.options) expect(text).toMatch(`\n  --${option} `);
  });

  it.each([
    [["run", "--help"]],
    [["run", "x", "-h", "--", "true"]],
    [["run", "--nosuch", "--help"]],
    [["help", "run"]],
    [["--help", "run"]],
  ])("%j explains run", async (args) => {
    const { code, stdout, stderr } = await holdfast(makeFolder(), args);
    expect(stdout).toBe(`${helpText(COMMANDS.find(({ name }) => name === "run"))}\n`);
    expect(stderr).toBe("");
    expect(code).toBe(0);
  });

  it("is printed on stderr with 64 if there is no command", async () => {
    const { code, stdout, stderr } = await holdfast(makeFolder(), []);
    expect(stderr).toContain(helpText());
    expect(stderr).toContain("a command is missing (see holdfast --help)");
    expect(stdout).toBe("");
    expect(code).toBe(64);
  });

  it("fits into 80 columns", () => {
    for (const command of [undefined, ...COMMANDS]) {
      for (const line of helpText(command).split("\n")) {
        expect(line.length, line).toBeLessThanOrEqual(80);
        expect(line).toBe(line.trimEnd());
      }
    }
  });

  it("names no option that docs/cli.md leaves out", () => {
    const docs = readFileSync(new URL("../../docs/cli.md", import.meta.url), "utf8");
    for (const option of COMMANDS.flatMap(({ options }) => options)) {
      expect(docs).toMatch(new RegExp(`--${option}\\b`));
    }
  });
});

describe("wrong usage ends with 64 and says what is wrong", () => {
  const once = (...more: string[]): string[] => [
    ...["run", "x", "--once-per", "1h"],
    ...[...more, "--", "true"],
  ];
  const cases: [string[], string][] = [
    [["nosuch"], 'there is no command "nosuch"'],
    [["help", "nosuch"], 'there is no command "nosuch"'],
    [["rnu", "x"], 'there is no command "rnu"; did you mean run?'],
    [["run", "x", "--wiat", "5s", "--", "true"], "no option --wiat; did you mean --wait?"],
    [["run", "--at-leest", "1s", "x"], "no option --at-leest; did you mean --at-least?"],
    [["--nosuch"], "there is no option --nosuch"],
    [["--store=x", "ls"], "there is no option --store before the command"],
    [["run"], "run needs a NAME"],
    [["run", "--", "true"], "run needs a NAME"],
    [["run", "x"], "needs a command after --"],
    [["run", "x", "true"], '"true" is one argument too many; write -- before'],
    [["run", "x", "--no-such", "--", "true"], "there is no option --no-such"],
    [["run", "x", "--at-leest", "1s", "--", "true"], "there is no option --at-leest"],
    [["run", "x", "--ttl", "--", "true"], "--ttl needs a value"],
    [["run", "x", "--ttl", "30", "--", "true"], '--ttl is "30"; it must be a number with a unit'],
    [["run", "x", "--wait=", "--", "true"], '--wait is ""'],
    [["run", "x", "--ttl", "1ms", "--", "true"], '--ttl is "1ms"; it must be a number'],
    [["run", "x", "--ttl", "1ms", "--", "true"], "from 20ms to 8760h (see"],
    [["run", "x", "--note", "n".repeat(250), "--", "true"], '--note is "nnn'],
    [["run", "x", "--note", "a", "--note", "b", "--", "true"], "--note is given more than once"],
    [["run", "x", "--quiet", "--quiet", "--", "true"], "--quiet is given more than once"],
    [["run", "x", "--quiet=no", "--", "true"], "--quiet takes no value"],
    [["run", "x", "--note", "-a", "--", "true"], "is written --note=VALUE"],
    [["run", "-host", "--", "true"], "no option -host; the NAME for run can't start with"],
    [["inspect", "-x"], 'a NAME that starts with "-" goes last, after --'],
    [["run", "x", "--if-unavailable", "hope", "--", "true"], "it must be fail or run"],
    [["run", "x", "--namespace", "a b", "--", "true"], 'namespace is "a b"'],
    [["run", "", "--", "true"], 'the name is ""'],
    [["run", "x", "--once-per", "1", "--", "true"], '--once-per is "1"; it must be a number with'],
    [["run", "x", "--at-most", "0", "--", "true"], '--at-most is "0"; it must be a whole number'],
    [["run", "x", "--at-most", "2147483647", "--", "true"], "from 1 to 2147483646"],
    [once("--wait", "1s"), "--once-per and --wait contradict each other: a run that waits would"],
    [once("--wait", "forever"), "--once-per and --wait contradict each other"],
    [once("--at-least", "1h"), "--once-per and --at-least contradict each other: the period"],
    [once("--shared"), "--once-per and --shared contradict each other: all runs that share"],
    [once("--at-most", "2"), "--once-per and --at-most contradict each other: several would"],
    [["run", "x", "--at-most", "2", "--shared", "--", "true"], "--at-most and --shared contradict"],
    [["elect"], "elect needs a NAME"],
    [["elect", "x"], "elect needs a command after --"],
    [["elect", "x", "--shared", "--", "true"], "there is no option --shared"],
    [["elect", "x", "--if-unavailable", "run", "--", "true"], "no option --if-unavailable"],
    [["deadlocks", "x"], '"x" is one argument too many'],
    [["run", "x", "--store", "memory:", "--", "true"], "would exclude no other"],
    [
      ["run", "x", "--store", "nosuch:x", "--", "true"],
      '--store: the store\'s URL has the unknown scheme "nosuch:"',
    ],
    [["ls", "--store", "/tmp/x.db"], "did you mean sqlite:/tmp/x.db?"],
    [["ls", "--store", "sqlite:"], "--store: sqlite: needs a file's path"],
    [["ls", "--store", "sqlite:x.db?a=1"], '--store: sqlite: URLs have no option "a"'],
    [
      ["ls", "--store", "mysql://h/db"],
      '--store: the store\'s URL has the unknown scheme "mysql:"',
    ],
    [["inspect", "a", "b"], '"b" is one argument too many'],
    [["release", "x"], "--force"],
    [["story", "oversould"], 'there is no story "oversould"; did you mean oversold?'],
    [["story", "row", "herd"], '"herd" is one argument too many'],
    [
      ["advise", "--work", "10"],
      '--work is "10"; it must be a number with a unit, such as 250ms, 30s, 5m or 1h, from 1ms to 876h (see',
    ],
    [["advise", "--network", "11s"], '--network is "11s"; it must be a number with a unit'],
    [["ls", "--store", "localhost:6379"], "such as redis://HOST:PORT"],
    [["ls", "--store", "redis://h?tls=1"], "write rediss: for TLS"],
    [["setup", "app"], '"app" is one argument too many'],
    [["setup", "--grant"], "--grant needs a value"],
    [["setup", "--print=no"], "--print takes no value"],
    [["setup", "--store", "postgres://h/db?schema=A-b"], 'the schema is "A-b"; it must consist of'],
    [["setup", "--store", "postgres://h/db", "--print", "--grant="], 'to grant rights to is ""'],
  ];

  it.each(cases)("%j", async (args, message) => {
    const { code, stdout, stderr } = await holdfast(makeFolder(), args);
    expect(stderr).toContain(message);
    const command = COMMANDS.find(({ name }) => name === args[0]);
    const help = command === undefined ? "--help" : `${command.name} --help`;
    expect(stderr).toContain(`(see holdfast ${help})`);
    expect(stdout).toBe("");
    expect(code).toBe(64);
  });

  it("a wrong URL in HOLDFAST_STORE, even with --if-unavailable run", async () => {
    const args = ["run", "x", "--if-unavailable", "run", "--", "true"];
    for (const url of ["locks.db", "memory:", "consul://localhost"]) {
      const { code, stderr } = await holdfast(makeFolder(), args, { HOLDFAST_STORE: url });
      expect(stderr).toMatch(/^holdfast: HOLDFAST_STORE: /);
      expect(code).toBe(64);
    }
  });

  it("without repeating a URL's password", async () => {
    for (const args of [
      ["ls", "redis://me:secret@host"],
      ["ls", "--store", "consul://me:secret@host"],
      ["ls", "--store", "me:secret@host/x.db"],
      ["run", "x", "--store", "redis://me:secret@host:99999999", "--", "true"],
    ]) {
      const { code, stdout, stderr } = await holdfast(makeFolder(), args);
      expect(code).toBe(64);
      expect(stdout + stderr).not.toContain("secret");
    }
  });
});
