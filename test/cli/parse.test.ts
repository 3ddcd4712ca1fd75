import { describe, expect, it } from "vitest";
import { COMMANDS } from "../../src/cli/commands.js";
import { parseLine } from "../../src/cli/parse.js";

const parse = (name: string, ...argv: string[]) =>
  parseLine(COMMANDS.find((one) => one.name === name)!, argv);

describe("a command line", () => {
  it("is kept as it was typed, numbers and empty texts too", () => {
    expect(parse("run", "--shared", "007", "--note=1e3", "--wait", "0", "--ttl", "")).toEqual({
      args: ["007"],
      options: { shared: true, note: "1e3", wait: "0", ttl: "" },
      child: [],
    });
  });

  it("takes a value after a space or after the first =", () => {
    const options = { note: "a=b", store: "-" };
    expect(parse("run", "x", "--note=a=b", "--store", "-")).toMatchObject({ options });
    expect(parse("run", "x", "--note", "a=b", "--store=-")).toMatchObject({ options });
    expect(parse("run", "x", "--note=--help")).toMatchObject({ options: { note: "--help" } });
  });

  it("ends at the first -- for run; the rest belongs to the child", () => {
    const child = ["cmd", "--ttl", "-h", "--", "", "008"];
    expect(parse("run", "x", "--", ...child)).toEqual({ args: ["x"], options: {}, child });
    expect(parse("run", "x", "--")).toEqual({ args: ["x"], options: {}, child: [] });
    expect(() => parse("run", "x", "--note", "--", "cmd")).toThrow("--note needs a value");
  });

  it("may have names that start with a dash after -- for other commands", () => {
    for (const name of ["-x", "--", "-h", "--json"]) {
      const line = { args: [name], options: { json: true }, child: [] };
      expect(parse("inspect", "--json", "--", name)).toEqual(line);
    }
    expect(() => parse("inspect", "--", "a", "b")).toThrow('"b" is one argument too many');
    expect(() => parse("inspect", "--store", "--", "a")).toThrow(/^--store needs a value$/);
  });

  it("with an option that only starts like -h does not print help", () => {
    expect(parse("run", "-h")).toBe("help");
    expect(() => parse("run", "-host", "--", "cmd")).toThrow("there is no option -host;");
    expect(() => parse("run", "x", "-xh")).toThrow(/^there is no option -xh$/);
  });

  it("refuses options that are words of every JavaScript object", () => {
    for (const option of ["--constructor", "--__proto__", "--toString=x"]) {
      expect(() => parse("ls", option)).toThrow(/^there is no option --[a-zA-Z_]+$/);
    }
  });

  it("refuses options of another command", () => {
    expect(() => parse("ls", "--force")).toThrow("there is no option --force");
    expect(() => parse("run", "x", "--version")).toThrow("there is no option --version");
  });
});
