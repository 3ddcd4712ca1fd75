import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { LUA } from "../../../src/stores/redis/lua.js";
import { SCRIPTS, selectingScript } from "../../../src/stores/redis/scripts.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { describeWith } from "../../support/needs.js";
import { rawRedis } from "../../support/redis.js";

test("the module with the scripts is generated from the Lua files as they are", () => {
  const folder = fileURLToPath(new URL("../../../src/stores/redis/lua", import.meta.url));
  const files = readdirSync(folder).sort();
  expect(Object.values(LUA)).toEqual(files.map((file) => readFileSync(join(folder, file), "utf8")));
});

describeWith(["redis"], "a Redis server", () => {
  let lab: Lab;
  let server: RedisServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
  });
  afterAll(() => lab.close());

  test.each(Object.values(SCRIPTS).flatMap((script) => [script, selectingScript(script, 3)]))(
    "compiles the script $name ($sha), and has the same hash for it",
    async ({ code, sha }) => {
      const raw = await rawRedis(server.url);
      expect(await raw.script("LOAD", code)).toBe(sha);
    },
  );
});
