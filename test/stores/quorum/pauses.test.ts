import { expect, test } from "vitest";
import type { QuorumStore } from "../../../src/stores/quorum/store.js";
import { claimBy, ignorePush, SimulatedQuorum } from "../../support/simulated-quorum.js";

/** The longest one of the simulation. */
const ROUND_TRIP_MS = 6;

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
