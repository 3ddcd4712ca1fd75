import { standardSeams } from "../../src/core/runtime.js";
import { type Claim, LOCK_LIMIT, type Push } from "../../src/core/store.js";
import { QuorumStore } from "../../src/stores/quorum/store.js";
import { MessagePath } from "../../src/verify/simulate/message-path.js";
import { SimulatedProcess } from "../../src/verify/simulate/process.js";
import { forwardTo } from "../../src/verify/simulate/quorum/forward.js";
import type { QuorumMutant } from "../../src/verify/simulate/quorum/mutant.js";
import { SimulatedNode } from "../../src/verify/simulate/quorum/node.js";
import { SimulatedServer } from "../../src/verify/simulate/quorum/server.js";
import { World } from "../../src/verify/simulate/world.js";

/** The ttl of each claim, and the longest simulated time that an answer may take. */
export const TTL_MS = 10_000;
const ABOUT = { maxTtlMs: 60_000, fsync: "later" } as const;
const START_MICROS = 1e15;

/** Simulated nodes in service, for directed runs of the real store, without the core. */
export class SimulatedQuorum {
  readonly world: World;
  readonly #leastMs: number;
  readonly servers: readonly SimulatedServer[];
  /** By client: the node that it does not reach. */
  readonly away = new Map<string, number>();
  /** The nodes that reply to nobody. */
  readonly hung = new Set<number>();
  /** When a client sends a claim to the first node. */
  readonly claims: { readonly client: string; readonly atMs: number }[] = [];

  /** `leastMs`: the least time that a message is under way. */
  constructor(seed = 1, nodes = 3, leastMs = 0) {
    this.world = new World(seed);
    this.#leastMs = leastMs;
    this.servers = Array.from(
      { length: nodes },
      (_, node) => new SimulatedServer(`run${node}`, () => START_MICROS + this.#elapsedMicros),
    );
    for (const server of this.servers) {
      const caller = { ...ABOUT, channel: "", marker: "" };
      server.settle(caller, server.join(caller).marker);
    }
  }

  /** A store that has joined the nodes. */
  async open(client: string, { nodes: wrap }: QuorumMutant = {}): Promise<QuorumStore> {
    const process = new SimulatedProcess(this.world, client, 1);
    const nodes = this.servers.map((server, node) => {
      const network = {
        isActive: () => false,
        stop: () => {},
        storeAnswersAtMs: () => (this.hung.has(node) ? Number.POSITIVE_INFINITY : this.world.nowMs),
        isDown: () => this.away.get(client) === node,
      };
      const name = `${client} at node-${node}`;
      const path = new MessagePath(this.world, process, network, { name, leastMs: this.#leastMs });
      const one = new SimulatedNode(`node-${node}`, server, path, { ...ABOUT, channel: client });
      if (node > 0) return one;
      return forwardTo(one, {
        claim: (claim) => {
          this.claims.push({ client, atMs: this.world.nowMs });
          return one.claim(claim);
        },
      });
    });
    const store = new QuorumStore(wrap?.(nodes) ?? nodes, {
      maxTtlMs: ABOUT.maxTtlMs,
      runtime: { clock: process.clock, random: this.world.chance(client), seams: standardSeams },
    });
    await this.until(store.setUp());
    return store;
  }

  /** Gives the client the vote of a node for a ballot that it does not go on with. */
  recordFor(client: string, node: number, ttlMs: number): void {
    const ballot = { name: "name", id: client, number: 0, ttlMs, seq: 1, atLeastMs: 0 };
    const caller = { ...ABOUT, channel: client, marker: "" };
    this.servers[node]!.claim(caller, { ...ballot, register: "never", holder: client });
  }

  /** Lets time pass until the answer is there. */
  async until<T>(answer: Promise<T>): Promise<T> {
    let isOver = false;
    const over = (): void => {
      isOver = true;
    };
    answer.then(over, over);
    await this.world.run(this.world.nowMs + TTL_MS, () => isOver);
    if (!isOver) throw new Error("there is no answer");
    return answer;
  }

  async pass(ms: number): Promise<void> {
    await this.world.run(this.world.nowMs + ms);
  }

  get #elapsedMicros(): number {
    return Math.floor(this.world.nowMs * 1_000);
  }
}

/** A claim of the lock "name" by a grantId, which is its holder too. */
export const claimBy = (grantId: string, queue = false): Claim => ({
  names: ["name"],
  grantId,
  seq: 1,
  permits: LOCK_LIMIT,
  limit: LOCK_LIMIT,
  ttlMs: TTL_MS,
  atLeastMs: 0,
  holder: grantId,
  queue,
});

export const ignorePush = (_push: Push): void => {};
