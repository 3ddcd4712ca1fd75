import { expect, test } from "vitest";
import { Member } from "../../../src/stores/quorum/member.js";
import { Membership } from "../../../src/stores/quorum/membership.js";
import type { NodeState, QuorumNode } from "../../../src/stores/quorum/node.js";
import { VirtualClock } from "../../../src/testing.js";

/** A node that answers after a delay. */
class SlowNode {
  readonly where: string;
  delayMs = 1;
  isNew = true;
  settled = 0;
  marker = 1;
  readonly #clock: VirtualClock;

  constructor(where: string, clock: VirtualClock) {
    this.where = where;
    this.#clock = clock;
  }

  async join(): Promise<NodeState> {
    await this.#answer();
    const { where, isNew, marker } = this;
    const recoveringForMs = isNew ? 60_000 : 0;
    return { runId: where, isNew, recoveringForMs, marker: `${marker}`, micros: 1 };
  }

  async settle(marker: string): Promise<void> {
    await this.#answer();
    if (marker !== `${this.marker}`) return;
    this.settled++;
    this.isNew = false;
  }

  #answer(): Promise<void> {
    return new Promise((resolve) => this.#clock.after(this.delayMs, resolve));
  }
}

function quorum(): { clock: VirtualClock; nodes: SlowNode[]; membership: Membership } {
  const clock = new VirtualClock();
  const nodes = ["a", "b", "c"].map((where) => new SlowNode(where, clock));
  const pending = { ends: new Set<() => void>(), isClosed: false };
  const members = nodes.map((node) => new Member(node as unknown as QuorumNode, clock, pending));
  return { clock, nodes, membership: new Membership(members, clock) };
}

/** Longer than a node gets to answer. */
const TOO_SLOW_MS = 6_000;

const settledOf = (nodes: readonly SlowNode[]): number[] => nodes.map(({ settled }) => settled);

test("new nodes are put into service, once", async () => {
  const { clock, nodes, membership } = quorum();
  const joining = membership.join();
  await clock.advance(1_000);
  await joining;
  await membership.join();
  expect(settledOf(nodes)).toEqual([1, 1, 1]);
});

test("new nodes are put into service when the last one, which did not answer before, has joined", async () => {
  const { clock, nodes, membership } = quorum();
  nodes[2]!.delayMs = TOO_SLOW_MS;
  const joining = membership.join();
  await clock.advance(TOO_SLOW_MS);
  await joining;
  expect(settledOf(nodes)).toEqual([0, 0, 0]);
  nodes[2]!.delayMs = 1;
  await clock.advance(TOO_SLOW_MS);
  await membership.join();
  await clock.advance(1_000);
  expect(settledOf(nodes)).toEqual([1, 1, 1]);
});

test("a late node stays out of the vote if the others were put into service meanwhile", async () => {
  const { clock, nodes, membership } = quorum();
  nodes[2]!.delayMs = TOO_SLOW_MS;
  const joining = membership.join();
  await clock.advance(TOO_SLOW_MS);
  await joining;
  // After maxTtl.
  nodes[0]!.isNew = false;
  nodes[1]!.isNew = false;
  nodes[2]!.delayMs = 1;
  await clock.advance(TOO_SLOW_MS);
  await membership.join();
  await clock.advance(1_000);
  expect(settledOf(nodes)).toEqual([0, 0, 0]);
});

test("a node that answers later than the others stays out of the vote if they were put into service meanwhile", async () => {
  const { clock, nodes, membership } = quorum();
  nodes[2]!.delayMs = 3_000;
  const joining = membership.join();
  await clock.advance(1_000);
  // By another client, whose leases the third node loses before it answers.
  nodes[0]!.isNew = false;
  nodes[1]!.isNew = false;
  await clock.advance(TOO_SLOW_MS);
  await joining;
  expect(settledOf(nodes)).toEqual([0, 0, 0]);
});

test("a node that loses its data after it has answered is not put into service", async () => {
  const { clock, nodes, membership } = quorum();
  nodes[1]!.delayMs = 1_000;
  const joining = membership.join();
  await clock.advance(500);
  nodes[0]!.marker++;
  await clock.advance(TOO_SLOW_MS);
  await joining;
  expect(settledOf(nodes)).toEqual([0, 1, 1]);
});

test("a node whose answer is lost is asked again after a second", async () => {
  const { clock, nodes, membership } = quorum();
  for (const node of nodes) Object.assign(node, { isNew: false, delayMs: TOO_SLOW_MS });
  const joining = membership.join();
  await clock.advance(500);
  for (const node of nodes) node.delayMs = 1;
  await clock.advance(501);
  await joining;
});

test("the first to join wait a moment for the others, and not for one that is silent", async () => {
  const { clock, nodes, membership } = quorum();
  for (const node of nodes) node.isNew = false;
  nodes[2]!.delayMs = TOO_SLOW_MS;
  let isReady = false;
  const joining = membership.join().then(() => {
    isReady = true;
  });
  await clock.advance(200);
  expect(isReady).toBe(false);
  await clock.advance(100);
  expect(isReady).toBe(true);
  await joining;
});
