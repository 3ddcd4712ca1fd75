import { describe, expect, test } from "vitest";
import { limitsOf } from "../../../src/stores/quorum/grants.js";
import type { QuorumStore } from "../../../src/stores/quorum/store.js";
import { claimBy, ignorePush, SimulatedQuorum, TTL_MS } from "../../support/simulated-quorum.js";

/** The longest one of the simulation. */
const ROUND_TRIP_MS = 6;
/** The core waits at least this long for the reply to a claim. */
const CLAIM_TIMEOUT_MS = 2_000;
/** A node that has not replied in this time is silent. */
const { silentMs: SILENT_MS } = limitsOf(TTL_MS);

/** The first claim of the client after its release, in ms after that. */
async function claimsAfterRelease(
  quorum: SimulatedQuorum,
  client: string,
  store: QuorumStore,
): Promise<number> {
  const [answer] = await quorum.until(store.release([{ name: "name", grantId: client }]));
  expect(answer).toBe("released");
  const releasedMs = quorum.world.nowMs;
  const sent = quorum.claims.length;
  await quorum.until(store.claim(claimBy(`${client} again`, true), ignorePush));
  const own = quorum.claims.slice(sent).find((one) => one.client === client);
  return own!.atMs - releasedMs;
}

async function hold(quorum: SimulatedQuorum): Promise<QuorumStore> {
  const store = await quorum.open("holder");
  const answer = await quorum.until(store.claim(claimBy("holder"), ignorePush));
  expect(answer.kind).toBe("granted");
  return store;
}

test("a process claims again at once after a release that nobody waited for", async () => {
  const quorum = new SimulatedQuorum();
  const holder = await hold(quorum);
  expect(await claimsAfterRelease(quorum, "holder", holder)).toBe(0);
});

test("a process pauses after its release for one that waits, which gets the name", async () => {
  const quorum = new SimulatedQuorum();
  const holder = await hold(quorum);
  const waiter = await quorum.open("waiter");
  const got: string[] = [];
  const look = async (): Promise<void> => {
    const { kind } = await waiter.claim(claimBy("waiter", true), ignorePush);
    got.push(kind);
  };
  const queued = await quorum.until(
    waiter.claim(claimBy("waiter", true), (push) => {
      if (push.kind === "look") look();
    }),
  );
  expect(queued.kind).toBe("queued");
  // It subscribes.
  await quorum.pass(10);
  expect(await claimsAfterRelease(quorum, "holder", holder)).toBeGreaterThan(0);
  expect(got).toEqual(["granted"]);
});

test("three clients split the votes of three nodes: one of them gets the name a few round trips later", async () => {
  let splits = 0;
  for (let seed = 1; seed <= 40; seed++) {
    const quorum = new SimulatedQuorum(seed);
    const clients = ["a", "b", "c"];
    const stores = await Promise.all(clients.map((client) => quorum.open(client)));
    const fromMs = quorum.world.nowMs;
    const claims = stores.map((store, i) => store.claim(claimBy(clients[i]!), ignorePush));
    const granted = claims.map(async (claim) => {
      if ((await claim).kind !== "granted") throw new Error("another has it");
    });
    await quorum.until(Promise.any(granted));
    const tookMs = quorum.world.nowMs - fromMs;
    expect(tookMs, `seed ${seed}`).toBeLessThan(10 * ROUND_TRIP_MS);
    if (quorum.claims.length > clients.length) splits++;
  }
  expect(splits).toBeGreaterThan(5);
});

describe.each<readonly [nodes: number, hung: readonly number[]]>([
  [3, [2]],
  [5, [4]],
  [5, [3, 4]],
])("with %d nodes, of which %j do not reply", (nodes, hung) => {
  async function open(seed: number, { leastMs = 0, clients = ["a", "b"] } = {}) {
    const quorum = new SimulatedQuorum(seed, nodes, leastMs);
    const stores = await Promise.all(clients.map((client) => quorum.open(client)));
    for (const node of hung) quorum.hung.add(node);
    return { quorum, clients, stores };
  }

  test.each([0, 8, 15, 50, 100, 200])(
    "one of two clients that split the votes gets the name, and the other learns of it: messages take %d ms",
    async (leastMs) => {
      let splits = 0;
      for (let seed = 1; seed <= 40; seed++) {
        const { quorum, clients, stores } = await open(seed, { leastMs });
        const fromMs = quorum.world.nowMs;
        const claims = stores.map((store, i) => store.claim(claimBy(clients[i]!), ignorePush));
        const answers = await quorum.until(Promise.all(claims));
        expect(quorum.world.nowMs - fromMs, `seed ${seed}`).toBeLessThan(CLAIM_TIMEOUT_MS);
        const kinds = answers.map(({ kind }) => kind).sort();
        expect(kinds, `seed ${seed}`).toEqual(["busy", "granted"]);
        const winner = clients[answers.findIndex(({ kind }) => kind === "granted")];
        const loser = answers.find(({ kind }) => kind === "busy");
        expect(loser, `seed ${seed}`).toMatchObject({ position: { holder: winner } });
        if (quorum.claims.length > clients.length) splits++;
      }
      expect(splits).toBeGreaterThan(5);
    },
  );

  test.each([0, 15, 50])(
    "one of ten clients gets the name: messages take %d ms",
    async (leastMs) => {
      const clients = Array.from({ length: 10 }, (_, i) => `client ${i}`);
      for (let seed = 1; seed <= 40; seed++) {
        const { quorum, stores } = await open(seed, { leastMs, clients });
        const fromMs = quorum.world.nowMs;
        const claims = stores.map((store, i) => store.claim(claimBy(clients[i]!), ignorePush));
        const answers = await quorum.until(Promise.all(claims));
        expect(quorum.world.nowMs - fromMs, `seed ${seed}`).toBeLessThan(CLAIM_TIMEOUT_MS);
        const kinds = answers.map(({ kind }) => kind).sort();
        expect(kinds, `seed ${seed}`).toEqual([...Array(9).fill("busy"), "granted"]);
      }
    },
  );

  test("a claim of a name that a majority holds needs one ballot", async () => {
    const { quorum, stores } = await open(1);
    const [holder, other] = stores as [QuorumStore, QuorumStore];
    const held = await quorum.until(holder.claim(claimBy("a"), ignorePush));
    expect(held.kind).toBe("granted");
    quorum.claims.length = 0;
    const answer = await quorum.until(other.claim(claimBy("b"), ignorePush));
    const position = { ahead: 0, freeInMs: expect.closeTo(TTL_MS, -3), holder: "a" };
    expect(answer).toEqual({ kind: "busy", name: "name", position });
    expect(quorum.claims).toHaveLength(1);
  });
});

describe.each([0, 8, 15, 50, 100])("messages take %d ms", (leastMs) => {
  async function open() {
    const quorum = new SimulatedQuorum(1, 3, leastMs);
    const store = await quorum.open("other");
    quorum.recordFor("holder", 0, TTL_MS);
    quorum.hung.add(2);
    return { quorum, store };
  }

  test("a name that another holds with the vote of a node that does not reply is busy after two ballots", async () => {
    const { quorum, store } = await open();
    for (const mostMs of [CLAIM_TIMEOUT_MS, CLAIM_TIMEOUT_MS - SILENT_MS]) {
      const fromMs = quorum.world.nowMs;
      quorum.claims.length = 0;
      const answer = await quorum.until(store.claim(claimBy("other"), ignorePush));
      expect(answer).toMatchObject({ kind: "busy", position: { holder: "holder" } });
      expect(quorum.claims).toHaveLength(2);
      expect(quorum.world.nowMs - fromMs).toBeLessThan(mostMs);
    }
  });

  test("a claim that is given up ends when a majority has replied", async () => {
    for (const afterMs of [1, 100, 300, 600, 700, 800, 900]) {
      const { quorum, store } = await open();
      const claim = store.claim(claimBy("other", true), ignorePush);
      await quorum.pass(afterMs);
      const fromMs = quorum.world.nowMs;
      await quorum.until(store.release([{ name: "name", grantId: "other" }]));
      // The rest of a ballot, and its release.
      expect(quorum.world.nowMs - fromMs, `${afterMs}`).toBeLessThanOrEqual(4 * (leastMs + 3));
      expect(await quorum.until(claim)).toMatchObject({ kind: "queued" });
    }
  });
});

test("two clients that died in a split keep a third one from the name only until their votes expire", async () => {
  for (let seed = 1; seed <= 20; seed++) {
    const quorum = new SimulatedQuorum(seed);
    const store = await quorum.open("late");
    for (const [node, client] of ["a", "b"].entries()) quorum.recordFor(client, node, 20);
    const { kind } = await quorum.until(store.claim(claimBy("late"), ignorePush));
    expect(kind, `seed ${seed}`).toBe("granted");
  }
});
