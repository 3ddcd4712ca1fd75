import { expect, test } from "vitest";
import { askEach, Member } from "../../../src/stores/quorum/member.js";
import type { QuorumNode } from "../../../src/stores/quorum/node.js";
import { Releases } from "../../../src/stores/quorum/releases.js";
import { VirtualClock } from "../../../src/testing/virtual-clock.js";

const LIMITS = { silentMs: 500, timeoutMs: 2_000 };
const MANY = 1_000;
const TTL_MS = 30_000;

function memberOf(clock: VirtualClock, node: Partial<QuorumNode>): Member {
  const pending = { ends: new Set<() => void>(), isClosed: false };
  const member = new Member({ where: "node", ...node } as QuorumNode, clock, pending);
  member.isJoined = true;
  return member;
}

/** Many releases, the answers to which a node gives, by the number of times that each was sent. */
function manyReleases() {
  const clock = new VirtualClock();
  const sent = new Map<string, number>();
  const node = { isAway: true };
  const member = memberOf(clock, {
    release: async ({ id }) => {
      sent.set(id, (sent.get(id) ?? 0) + 1);
      if (node.isAway) throw new Error("away");
      return "released";
    },
  });
  const releases = new Releases([member], clock);
  const send = (id: string): void => {
    const release = { name: "name", id, number: 1, unused: false, wakes: true };
    const ballot = { mayReach: () => false };
    releases.send({ ...release, ballot }, { limits: LIMITS, keptMs: TTL_MS }, () => {});
  };
  for (let i = 0; i < MANY; i++) send(`id-${i}`);
  const count = (): number => [...sent.values()].reduce((sum, one) => sum + one, 0);
  return { clock, node, sent, count, releases, send };
}

test("while a node is away, some of many releases are repeated; when it is back, it gets each once more", async () => {
  const { clock, node, sent, count } = manyReleases();
  await clock.advance(20_000);
  const repeated = [...sent.values()].filter((times) => times > 1);
  expect(repeated).toHaveLength(100);
  expect(count() - MANY).toBeLessThanOrEqual(100 * 20);
  node.isAway = false;
  sent.clear();
  await clock.advance(2_000);
  expect([sent.size, count()]).toEqual([MANY, MANY]);
  expect(clock.timers).toBe(0);
});

test("releases whose records have expired are not sent to a node that is back", async () => {
  const { clock, node, sent, send } = manyReleases();
  await clock.advance(TTL_MS - 1_000);
  send("later");
  await clock.advance(1_000);
  node.isAway = false;
  sent.clear();
  await clock.advance(2_000);
  expect([...sent]).toEqual([["later", 1]]);
});

test("closing sends all that is owed once more, and nothing after it", async () => {
  const { clock, sent, count, releases } = manyReleases();
  await clock.advance(1_000);
  sent.clear();
  await releases.flush();
  expect([sent.size, count()]).toEqual([MANY, MANY]);
  releases.close();
  await clock.advance(TTL_MS);
  expect(count()).toBe(MANY);
});

test("a silent node with 10,000 requests gets no more until it answers", async () => {
  const clock = new VirtualClock();
  const replies: (() => void)[] = [];
  const member = memberOf(clock, {
    pass: () => new Promise((resolve) => replies.push(resolve)),
  });
  const errors: string[] = [];
  const ask = (times: number): void => {
    const members = Array.from({ length: times }, () => member);
    const send = (node: QuorumNode): Promise<void> => node.pass("name");
    askEach(members, LIMITS, send, (answer) => {
      if (answer instanceof Error) errors.push(answer.message);
    });
  };
  ask(10_001);
  expect(replies).toHaveLength(10_001);
  await clock.advance(LIMITS.silentMs + LIMITS.timeoutMs);
  errors.length = 0;
  ask(1);
  await clock.advance(0);
  expect(replies).toHaveLength(10_001);
  expect(errors).toEqual(["node has not answered the last 10001 requests"]);
  replies[0]!();
  await clock.advance(0);
  ask(1);
  expect(replies).toHaveLength(10_002);
});
