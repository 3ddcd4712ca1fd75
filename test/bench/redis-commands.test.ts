import { expect, onTestFinished, test } from "vitest";
import { Lab } from "../../src/verify/lab/lab.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { needs } from "../support/needs.js";
import { load } from "./load.js";

const { countCommands } = await load<{
  countCommands(server: RedisServer): () => Promise<number>;
}>("lib/redis-commands.mjs");

test("commands of clients are counted at the server, without those that a script calls", async (context) => {
  needs(context, "redis");
  const lab = await Lab.open();
  onTestFinished(() => lab.close());
  const server = await lab.redis();
  const commands = countCommands(server);
  await server.cli("set", "before", "1");
  expect(await commands()).toBe(0);
  await server.cli("eval", "for i = 1, 10 do redis.call('set', 'name', i) end", "0");
  await server.cli("get", "name");
  expect(await commands()).toBe(2);
  await server.cli("publish", "channel", "message");
  expect(await commands()).toBe(3);
});
