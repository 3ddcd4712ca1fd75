import { standardSeams } from "../../../core/runtime.js";
import type { NameInfo, Store } from "../../../core/store.js";
import { majorityOf } from "../../../stores/quorum/ballot.js";
import { shortId } from "../../../stores/quorum/keys.js";
import { toNameInfo } from "../../../stores/quorum/name-info.js";
import type { NodeRevocation, QuorumNode } from "../../../stores/quorum/node.js";
import { QuorumStore } from "../../../stores/quorum/store.js";
import { delegate } from "../../../testing/delegate.js";
import type { Excuse, RuleId, Verdict } from "../../check/check.js";
import { whenAnswered } from "../batches.js";
import { nameOf } from "../client.js";
import { MessagePath } from "../message-path.js";
import { opOf, plainName } from "../observe.js";
import type { MessageFault, Nodes, StoreTrouble } from "../schedule.js";
import { clientName, type Site, type SiteSurroundings } from "../site.js";
import { forwardTo } from "./forward.js";
import { GrantedBallots } from "./grants.js";
import type { QuorumMutant } from "./mutant.js";
import { SimulatedNode } from "./node.js";
import { SimulatedServer } from "./server.js";

/** The longest delay of a late message between a client and a node. */
const LATE_MS = 1_500;
const START_MS = Date.UTC(2030, 0, 1);
/** How often it is looked whether a node is back in service. */
const LOOKS_EVERY_MS = 100;
/** Nothing else is promised by a store that may grant twice. */
const EXCLUSION: readonly RuleId[] = ["S1", "S9"];
const TOKENS: readonly RuleId[] = ["S2", "S3"];

interface Revoked {
  readonly fromMs: number;
  readonly nodes: Set<number>;
}

/** The real quorum store in each process, over simulated nodes. */
export class QuorumSite implements Site {
  readonly #around: SiteSurroundings;
  readonly #about: Nodes;
  readonly #majority: number;
  readonly #servers: readonly SimulatedServer[];
  /** How far the clock of each node was set ahead. */
  readonly #jumpedMs: number[];
  readonly #down = new Set<number>();
  /** By client and node. */
  readonly #nodes: readonly (readonly SimulatedNode[])[];
  readonly #stores: readonly QuorumStore[];
  readonly #ballots = new GrantedBallots();
  /** By client and op: the last ballot, and when it was asked. */
  readonly #asked = new Map<string, { readonly id: string; readonly atMs: number }>();
  readonly #revoked = new Map<string, Revoked>();
  #restarts = 0;

  constructor(around: SiteSurroundings, about: Nodes, mutant: QuorumMutant = {}) {
    const { world, processes, schedule } = around;
    this.#around = around;
    this.#about = about;
    this.#majority = majorityOf(about.clocks.length);
    this.#jumpedMs = about.clocks.map(() => 0);
    const Server = mutant.server ?? SimulatedServer;
    this.#servers = about.clocks.map(
      (_, node) =>
        new Server(
          `run${node}`,
          () => this.#microsOf(node),
          (revocation) => this.#noteRevoked(revocation, node),
        ),
    );
    if (about.areNew) this.#awaitService("the nodes are new", 0, [...this.#servers.keys()]);
    else for (const node of this.#servers.keys()) this.#install(node);
    this.#nodes = processes.map((_, client) =>
      this.#servers.map((server, node) => this.#connect(server, client, node)),
    );
    this.#stores = processes.map(({ clock }, client) => {
      const observed = this.#nodes[client]!.map((node) => this.#observed(node, client));
      const random = world.chance(`ballots of ${clientName(client)} of ${schedule.seed}`);
      return new QuorumStore(mutant.nodes?.(observed) ?? observed, {
        maxTtlMs: about.maxTtlMs,
        runtime: { clock, random, seams: standardSeams },
        closesNodes: true,
      });
    });
  }

  storeFor(client: number): Store {
    return this.#stores[client]!;
  }

  observe(client: number, store: Store): Store {
    const granted = (name: string, holder: string, token: bigint): void => {
      const op = opOf(holder, plainName(name));
      const asked = this.#asked.get(`${client} ${op}`);
      if (asked === undefined) return;
      const decidedMs = this.#around.processes[client]!.nowMs;
      const ballot = { name: plainName(name), id: asked.id, token, client: clientName(client) };
      this.#ballots.add({ ...ballot, askedMs: asked.atMs, decidedMs });
    };
    return {
      ...delegate(store),
      claim: (claim, push) => {
        const [name] = claim.names as [string];
        const answer = store.claim(claim, (one) => {
          if (one.kind === "granted") granted(name, claim.holder, one.grant.token);
          push(one);
        });
        return whenAnswered(answer, (known) => {
          if (known.kind === "granted") granted(name, claim.holder, known.grants[0]!.token);
          return known;
        });
      },
      renew: (renewals) => {
        const sentMs = this.#around.processes[client]!.nowMs;
        return whenAnswered(store.renew(renewals), (answers) => {
          for (const [i, { name }] of renewals.entries()) {
            const answer = answers[i];
            if (answer?.kind !== "granted") continue;
            const { token } = answer.grant;
            const renewed = { name: plainName(name), token, client: clientName(client), sentMs };
            this.#ballots.addRenewal(renewed);
          }
          return answers;
        });
      },
    };
  }

  list(): readonly NameInfo[] {
    const names = new Set(this.#servers.flatMap((server) => server.names("")));
    return [...names].flatMap((name) => {
      const given = this.#servers.map((server, node) => {
        return { where: `node-${node}`, info: server.inspect(name) };
      });
      return toNameInfo(name, this.#servers.length, { given, missing: [] }) ?? [];
    });
  }

  plan(trouble: StoreTrouble): void {
    if (!("node" in trouble)) return;
    const { world } = this.#around;
    const { node, fromMs } = trouble;
    const server = this.#servers[node]!;
    const what = `node-${node}: ${trouble.kind}`;
    switch (trouble.kind) {
      case "node hangs":
        this.#disturbs(what, trouble);
        return;
      case "node restarts":
        this.#planRestart(trouble);
        return;
      case "node is flushed":
        world.at(fromMs, () => {
          server.flush();
          if (!this.#areFaultsHidden) this.#awaitService(what, fromMs, [node]);
        });
        return;
      case "node forgets a record":
        this.#around.window(what, { fromMs, toMs: fromMs + LATE_MS, sparesStore: false });
        world.at(fromMs, () => {
          for (const name of server.names("")) {
            if (plainName(name) === nameOf(trouble.name)) server.forget(name);
          }
        });
        return;
      case "node's clock jumps":
        // Records end early, or stay for that much longer.
        this.#around.window(what, {
          fromMs,
          toMs: fromMs + this.#about.maxTtlMs + Math.max(0, -trouble.byMs),
          sparesStore: false,
        });
        world.at(fromMs, () => {
          server.dropExpired();
          this.#jumpedMs[node]! += trouble.byMs;
        });
        return;
      default: {
        const { client, kind, toMs } = trouble;
        const isLate = kind === "messages are late" || kind === "pushes are late";
        this.#disturbs(`${clientName(client)} at ${what}`, {
          fromMs,
          toMs: toMs + (isLate ? LATE_MS : 0),
        });
        if (kind !== "subscription is down") return;
        world.at(fromMs, () => this.#nodes[client]![node]!.unsubscribe());
        world.at(toMs, () => this.#nodes[client]![node]!.resubscribe());
      }
    }
  }

  resubscribe(client: number): void {
    for (const node of this.#nodes[client]!) node.resubscribe();
  }

  get excuses(): readonly Excuse[] {
    const always = { fromMs: 0, toMs: Number.POSITIVE_INFINITY };
    const excuses: Excuse[] = [...this.#revoked.values()]
      // A forced release that failed has taken the name from the lease on some nodes.
      .filter(({ nodes }) => nodes.size < this.#majority)
      .map(({ fromMs }) => ({ ...always, rules: EXCLUSION, fromMs }));
    const { isAhead, forgets, losers } = this.#faults;
    if (isAhead || forgets || losers.size === this.#servers.length) {
      excuses.push({ ...always, rules: EXCLUSION });
    }
    if (this.#mayTokensFall) excuses.push({ ...always, rules: TOKENS });
    return excuses;
  }

  verdicts(): readonly Verdict[] {
    return [
      ...(this.#mayTokensFall ? [] : [this.#ballots.order()]),
      // A node that has lost its counters may let a grant be renewed that a later one has replaced.
      ...(this.#faults.losers.size > 0 ? [] : [this.#ballots.renewals()]),
    ];
  }

  /** Data lost and a clock that is wrong. */
  get #mayTokensFall(): boolean {
    const { losers, hasWrongClock } = this.#faults;
    return losers.size > 0 && hasWrongClock;
  }

  get #faults() {
    const { troubles } = this.#around.schedule;
    const jumps = troubles.flatMap((one) => (one.kind === "node's clock jumps" ? [one.byMs] : []));
    const ahead = this.#about.clocks.map(({ aheadMs }) => aheadMs);
    const spreadMs = Math.max(...ahead) - Math.min(...ahead);
    return {
      isAhead: jumps.some((byMs) => byMs > 0),
      areClocksEqual: jumps.length === 0 && spreadMs <= this.#about.maxTtlMs / 8,
      hasWrongClock: jumps.length > 0 || spreadMs > this.#about.maxTtlMs / 2,
      forgets: troubles.some(({ kind }) => kind === "node forgets a record"),
      losers: new Set(troubles.flatMap((one) => (this.#losesData(one) ? [one.node] : []))),
    };
  }

  #losesData(one: {
    kind: string;
    node?: number;
    oldMs?: number;
  }): one is { node: number; kind: string } {
    if (one.kind === "node is flushed") return true;
    return one.kind === "node restarts" && one.oldMs !== 0;
  }

  /**
   * Whether nobody may notice the faults of the nodes: they hit a minority, the clocks agree, and no name has two
   * clients. Where ballots compete, a lease may rest on a bare majority.
   */
  get #areFaultsHidden(): boolean {
    const { troubles, tasks } = this.#around.schedule;
    const hit = new Set(troubles.flatMap((one) => ("node" in one ? [one.node] : [])));
    const users = new Set(tasks.map(({ client, name }) => `${client} ${name}`));
    const names = new Set(tasks.map(({ name }) => name));
    const { areClocksEqual, forgets } = this.#faults;
    return hit.size < this.#majority && users.size === names.size && areClocksEqual && !forgets;
  }

  #disturbs(what: string, span: { fromMs: number; toMs: number }): void {
    if (!this.#areFaultsHidden) this.#around.window(what, span);
  }

  #planRestart(trouble: Extract<StoreTrouble, { kind: "node restarts" }>): void {
    const { world } = this.#around;
    const { node, fromMs, toMs, oldMs } = trouble;
    const server = this.#servers[node]!;
    let data: ReturnType<SimulatedServer["copy"]> | null = null;
    if (oldMs !== undefined && oldMs > 0) {
      world.at(fromMs - oldMs, () => {
        data = server.copy();
      });
    }
    world.at(fromMs, () => {
      // It is down already.
      if (this.#down.has(node)) return;
      this.#down.add(node);
      if (oldMs === 0) data = server.copy();
      world.at(toMs, () => {
        this.#down.delete(node);
        server.restart(`run${node}x${++this.#restarts}`, data);
        for (const nodes of this.#nodes) nodes[node]!.resubscribe();
      });
    });
    if (this.#areFaultsHidden) return;
    const what = `node-${node}: ${trouble.kind}`;
    this.#around.window(what, trouble);
    world.at(toMs, () => this.#awaitService(`${what} and recovers`, toMs, [node]));
  }

  /** Records a fault until these nodes are in service. */
  #awaitService(what: string, fromMs: number, nodes: readonly number[]): void {
    const { world, record } = this.#around;
    const fault = `${what} (from ${fromMs} ms)`;
    record({ kind: "injected", atMs: fromMs, fault, sparesStore: false });
    const look = (): void => {
      const areBack = nodes.every((node) => this.#servers[node]!.isInService);
      if (areBack) record({ kind: "healed", atMs: world.nowMs, fault });
      else world.at(world.nowMs + LOOKS_EVERY_MS, look);
    };
    world.at(fromMs, look);
  }

  /** Puts a node into service that others have used before. */
  #install(node: number): void {
    const caller = { ...this.#callerAt(node), channel: "", marker: "" };
    this.#servers[node]!.settle(caller, this.#servers[node]!.join(caller).marker);
  }

  #callerAt(node: number) {
    const fsync = this.#about.syncs[node] ? "always" : "later";
    return { maxTtlMs: this.#about.maxTtlMs, fsync } as const;
  }

  #connect(server: SimulatedServer, client: number, node: number): SimulatedNode {
    const { world, processes, schedule, isActive, stop } = this.#around;
    const network = {
      isActive: (fault: MessageFault) => isActive(fault, client, node),
      stop: () => stop(client),
      isDown: () => this.#down.has(node),
      storeAnswersAtMs: () =>
        schedule.troubles.reduce(
          (latest, one) =>
            one.kind === "node hangs" &&
            one.node === node &&
            one.fromMs <= world.nowMs &&
            world.nowMs < one.toMs
              ? Math.max(latest, one.toMs)
              : latest,
          world.nowMs,
        ),
    };
    const name = `${clientName(client)} at node-${node}`;
    // A vote that arrives by another connection than it was sent by does not count: see RedisNode. So no copy of a
    // claim arrives after an answer that counts.
    const how = { name, lateMs: LATE_MS, answersLastCopy: true };
    const path = new MessagePath(world, processes[client]!, network, how);
    const channel = clientName(client);
    return new SimulatedNode(`node-${node}`, server, path, { ...this.#callerAt(node), channel });
  }

  /** Notes when a ballot is asked. */
  #observed(node: QuorumNode, client: number): QuorumNode {
    return forwardTo(node, {
      claim: (claim) => {
        const key = `${client} ${opOf(claim.holder, plainName(claim.name))}`;
        if (this.#asked.get(key)?.id !== claim.id) {
          this.#asked.set(key, { id: claim.id, atMs: this.#around.processes[client]!.nowMs });
        }
        return node.claim(claim);
      },
    });
  }

  /** A forced release takes effect when a majority has carried it out, and may do so before. */
  #noteRevoked({ name, id, number, holder }: NodeRevocation, node: number): void {
    const { world, record } = this.#around;
    const key = `${name} ${id}`;
    const revoked = this.#revoked.get(key) ?? { fromMs: world.nowMs, nodes: new Set() };
    this.#revoked.set(key, revoked);
    const before = revoked.nodes.size;
    revoked.nodes.add(node);
    if (before >= this.#majority || revoked.nodes.size < this.#majority) return;
    const op = opOf(holder, plainName(name));
    const { fromMs: sinceMs } = revoked;
    // The nodes may have recorded the ballot under several numbers.
    const decided = this.#ballots.tokenOf(plainName(name), (one) => shortId(one) === id);
    const token = decided ?? BigInt(number);
    record({ kind: "revoked", atMs: world.nowMs, sinceMs, op, token });
  }

  #microsOf(node: number): number {
    const { aheadMs, rate } = this.#about.clocks[node]!;
    const ms = START_MS + aheadMs + this.#jumpedMs[node]! + this.#around.world.nowMs * rate;
    return Math.floor(ms * 1_000);
  }
}
