import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { lackingClient, versionsHere } from "../../../src/verify/runner/versions.js";

const { version, devDependencies } = JSON.parse(readFileSync("package.json", "utf8"));

test.each([
  ["redis://a", ["ioredis", "redis"]],
  ["redlock://a,b,c", ["ioredis", "redis"]],
  ["postgres://a/b", ["pg"]],
  ["etcd://a", ["@grpc/grpc-js"]],
  ["zookeeper://a", []],
  ["sqlite:a.db", []],
])(
  "a verification of %s names the versions of Holdfast, Node and the client libraries",
  (url, clients) => {
    expect(versionsHere(url)).toEqual({
      holdfast: version,
      node: process.versions.node,
      ...Object.fromEntries(clients.map((name) => [name, devDependencies[name]])),
    });
  },
);

test.each([
  ["redis://a", [], "npm install ioredis (or redis)"],
  ["redis://a", ["redis"], null],
  ["postgres://a/b", [], "npm install pg"],
  ["zookeeper://a", [], null],
])("a verification of %s with %j installed says what is lacking", (url, installed, advice) => {
  const find = (name: string) => (installed.includes(name as never) ? "package.json" : undefined);
  const lacking = lackingClient(url, find);
  if (advice === null) expect(lacking).toBeNull();
  else expect(lacking).toContain(advice);
});
