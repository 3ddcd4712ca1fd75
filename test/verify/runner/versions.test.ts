import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { versionsHere } from "../../../src/verify/runner/versions.js";

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
