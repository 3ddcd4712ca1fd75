import type { Claim, Grant, Push, Release, Store } from "../../core/store.js";
import { type Claimant, IDS, NAMES, nameOf, type Request, type Step, TIMES_MS } from "./program.js";
import { type Ignored, Transcript } from "./transcript.js";

interface Waiting {
  readonly name: string;
  /** Only pushes to callbacks of the present phase count: those of claims since the waiter's last final reply or release. */
  phase: number;
  /** The ticket may expire before a push arrives, or a push of the former phase may arrive only now: none is compared. */
  isUncertain: boolean;
  /** The step that released it last. */
  releasedIn: number;
  pushes: Push[];
}

/** One program on one store: sends the requests, and keeps the replies and the pushes. */
export class Execution {
  readonly transcript: Transcript;
  /** How many pushes waiters got so far, by kind. */
  readonly pushed = { granted: 0, look: 0, lost: 0 };
  readonly #clients: readonly Store[];
  readonly #names: readonly string[];
  readonly #waiting = new Map<string, Waiting>();
  #steps = 0;

  constructor(clients: readonly Store[], prefix: string, ignored: ReadonlySet<Ignored>) {
    this.#clients = clients;
    this.#names = Array.from({ length: NAMES }, (_, i) => `${prefix} ${nameOf(i)}`);
    this.transcript = new Transcript(ignored);
  }

  async run(step: Step): Promise<void> {
    this.#steps++;
    switch (step.do) {
      case "requests": {
        const replies = await Promise.all(step.requests.map((one) => this.#send(one)));
        this.transcript.add(replies);
        break;
      }
      case "renew":
        for (const [i, client] of this.#clients.entries()) await this.#renew(step, client, i);
        break;
      case "revoke": {
        const name = this.#names[step.name]!;
        const by = { holder: "operator", why: "a test" };
        const holders = await this.#clients[0]!.revoke(name, by);
        this.transcript.add(holders.map((one) => this.transcript.holder(one, name)));
        break;
      }
      case "resize":
        this.transcript.add(
          await this.#clients.at(-1)!.resize(this.#names[step.name]!, step.limit),
        );
    }
  }

  async inspect(): Promise<void> {
    for (const name of this.#names) {
      this.transcript.add(this.transcript.info(await this.#clients[0]!.inspect(name)));
    }
  }

  /** Pushes to waiters that have not learned the same from a reply. */
  pushes(kinds: readonly Push["kind"][]): ReadonlyMap<string, readonly Push[]> {
    return new Map(
      [...this.#waiting]
        .map(([grantId, { pushes }]): [string, Push[]] => [
          grantId,
          pushes.filter(({ kind }) => kinds.includes(kind)),
        ])
        .filter(([, pushes]) => pushes.length > 0)
        .sort(([a], [b]) => (a < b ? -1 : 1)),
    );
  }

  /** Adds these pushes to the transcript. */
  addPushes(kinds: readonly Push["kind"][]): void {
    const shown = (grant: Grant, grantId: string): unknown =>
      this.transcript.grant(grant, this.#waiting.get(grantId)!.name);
    this.transcript.add(
      [...this.pushes(kinds)].map(([grantId, pushes]) => ({
        to: grantId,
        pushes: pushes.map((one) =>
          one.kind === "granted" ? shown(one.grant, grantId) : one.kind,
        ),
      })),
    );
  }

  /** Releases all claims that the program has left. */
  async releaseAll(): Promise<void> {
    for (let id = 0; id < IDS; id++) {
      const releases = this.#names.flatMap((name, i) =>
        [true, false].map(
          (both): Release => ({
            name,
            grantId: this.#grantId({ id, name: i, both }),
            unused: true,
          }),
        ),
      );
      await this.#client(id).release(releases);
    }
  }

  async #send(request: Request): Promise<unknown> {
    const name = this.#names[request.name]!;
    const grantId = this.#grantId(request);
    const client = this.#client(request.id);
    if (request.do === "release") {
      // Before the reply: a claim of the same turn begins the next phase.
      this.#endPhase(grantId);
      const former = this.#waiting.get(grantId);
      if (former !== undefined) former.releasedIn = this.#steps;
      const [released] = await client.release([{ name, grantId, unused: request.unused }]);
      return { released };
    }
    const names = request.both ? this.#names : [name];
    const claim: Claim = {
      names,
      grantId,
      seq: request.seq,
      permits: request.permits,
      limit: request.limit,
      ttlMs: TIMES_MS[request.ttl],
      atLeastMs: request.atLeast === "none" ? 0 : TIMES_MS[request.atLeast],
      holder: `holder ${request.id}`,
      queue: request.queue,
    };
    const waiting = this.#waiting.get(grantId) ?? newWaiting(name);
    this.#waiting.set(grantId, waiting);
    waiting.isUncertain = request.ttl === "short" || waiting.releasedIn === this.#steps;
    const { phase } = waiting;
    const answer = await client.claim(claim, (push) => {
      this.pushed[push.kind]++;
      if (waiting.phase === phase && !waiting.isUncertain) waiting.pushes.push(push);
    });
    const isFinal = answer.kind === "granted" || answer.kind === "lost";
    if (isFinal && waiting.phase === phase) this.#endPhase(grantId);
    return this.transcript.claimed(answer, names);
  }

  async #renew(step: Step & { do: "renew" }, client: Store, index: number): Promise<void> {
    const mine = step.renewals.filter(({ id }) => this.#clientIndex(id) === index);
    if (mine.length === 0) return;
    const renewals = mine.map((one) => ({
      name: this.#names[one.name]!,
      grantId: this.#grantId(one),
      seq: one.seq,
      ttlMs: TIMES_MS[one.ttl],
    }));
    for (const [i, { ttl }] of mine.entries()) {
      const waiting = this.#waiting.get(renewals[i]!.grantId);
      if (waiting !== undefined) waiting.isUncertain = ttl === "short";
    }
    const answers = await client.renew(renewals);
    for (const [i, { grantId }] of renewals.entries()) {
      if (answers[i]?.kind !== "queued") this.#endPhase(grantId);
    }
    this.transcript.add(
      answers.map((one, i) => this.transcript.renewed(one, renewals[i]?.name ?? "")),
    );
  }

  /** Ends a phase: a waiter that learns of its grant or its end from a reply may get the push as well, or not. */
  #endPhase(grantId: string): void {
    const waiting = this.#waiting.get(grantId);
    if (waiting === undefined) return;
    waiting.phase++;
    waiting.pushes = [];
  }

  #client(id: number): Store {
    return this.#clients[this.#clientIndex(id)]!;
  }

  #clientIndex(id: number): number {
    return id % this.#clients.length;
  }

  /** A grantId belongs to one name, or to both when they are claimed at once. */
  #grantId({ id, name, both }: Claimant): string {
    return `${both ? this.#names.join() : this.#names[name]} grant ${id}`;
  }
}

const newWaiting = (name: string): Waiting => ({
  name,
  phase: 0,
  isUncertain: false,
  releasedIn: 0,
  pushes: [],
});
