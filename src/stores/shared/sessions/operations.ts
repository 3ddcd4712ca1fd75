import { randomUUID } from "node:crypto";
import {
  type HolderInfo,
  LOCK_LIMIT,
  type NameInfo,
  type RevokedInfo,
  WAITERS_SHOWN,
  type WaiterInfo,
} from "../../../core/store.js";
import type { ClaimQueue, StandingClaim } from "./claim-queue.js";

/** Attempts at a step before it is left to the caller to retry: other clients may change the name in between. */
export const ATTEMPTS = 20;

export const tooMuchContentionError = (name: string): Error =>
  new Error(
    `other clients changed ${JSON.stringify(name)} before each of ${ATTEMPTS} attempts; retry`,
  );

/** A forced release, and its id, by which the step is recognized if its reply was lost. */
export interface RevocationStep {
  readonly holder: string;
  readonly why: string;
  readonly id: string;
}

/** The holder or waiter that a record describes; null if the record has gone meanwhile. */
interface Shown<C, Revocation> {
  holder(claim: C): Promise<HolderInfo | null>;
  waiter(claim: C): Promise<WaiterInfo | null>;
  revoked(revocation: Revocation): RevokedInfo | Promise<RevokedInfo>;
}

/** The requests of people that change a name: revoke and resize. They need no claim of this process. */
export abstract class SessionOperations<
  C extends StandingClaim,
  Read extends { readonly queue: ClaimQueue<C> },
> {
  readonly #mostInOneStep: number;

  /** `mostInOneStep`: holders that one step revokes. */
  constructor(mostInOneStep: number) {
    this.#mostInOneStep = mostInOneStep;
  }

  /** Takes the name from its present holders, not from claims that are granted it meanwhile. */
  async revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    const infos: HolderInfo[] = [];
    const id = randomUUID();
    let present: ReadonlySet<string> | null = null;
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const read = await this.read(name);
      const all = read.queue.holders();
      present ??= new Set(all.map(({ grantId }) => grantId));
      const some = all.filter(({ grantId }) => present!.has(grantId)).slice(0, this.#mostInOneStep);
      if (some.length === 0) return infos;
      const step = { ...by, id: `${id}-${infos.length}` };
      const revoked = await this.revokeInOneStep(name, some, read, step);
      if (revoked === null) continue;
      infos.push(...revoked);
      attempt = 0;
    }
    throw tooMuchContentionError(name);
  }

  async resize(name: string, limit: number): Promise<number | null> {
    let earlier: number | null = null;
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const read = await this.read(name);
      const before = read.queue.limit;
      // An attempt whose reply was lost may have made the change.
      if (before === limit) return earlier ?? before;
      if (before === null || before === LOCK_LIMIT) return before;
      if (await this.resizeInOneStep(name, read, limit)) return before;
      earlier = before;
    }
    throw tooMuchContentionError(name);
  }

  /** The name after everything that was done before this call. */
  protected abstract read(name: string): Promise<Read>;

  /** Resolves to null if others have changed something meanwhile. */
  protected abstract revokeInOneStep(
    name: string,
    holders: readonly C[],
    read: Read,
    step: RevocationStep,
  ): Promise<readonly HolderInfo[] | null>;

  /** Resolves to false if others have changed something meanwhile. */
  protected abstract resizeInOneStep(name: string, read: Read, limit: number): Promise<boolean>;
}

/** The result of a store's `inspect`; null: there is nothing to be shown of the name. */
export async function infoOf<C extends StandingClaim, Revocation>(
  name: string,
  queue: ClaimQueue<C>,
  revocations: readonly Revocation[],
  shown: Shown<C, Revocation>,
): Promise<NameInfo | null> {
  if (queue.size + revocations.length === 0) return null;
  const [holders, waiters, revoked] = await Promise.all([
    Promise.all(queue.holders().map((one) => shown.holder(one))),
    Promise.all(shownWaiters(queue).map((one) => shown.waiter(one))),
    Promise.all(revocations.map((one) => shown.revoked(one))),
  ]);
  return toNameInfo(name, queue, { holders, waiters, revoked });
}

/** The waiters that people see: the first ones. */
export const shownWaiters = <C extends StandingClaim>(queue: ClaimQueue<C>): C[] =>
  queue.waiters().slice(0, WAITERS_SHOWN);

/** A name as people see it. Null stands for a record that has gone meanwhile. */
export function toNameInfo(
  name: string,
  queue: ClaimQueue<StandingClaim>,
  {
    holders,
    waiters,
    revoked,
  }: {
    holders: readonly (HolderInfo | null)[];
    waiters: readonly (WaiterInfo | null)[];
    revoked: readonly RevokedInfo[];
  },
): NameInfo {
  return {
    name,
    limit: queue.limit ?? LOCK_LIMIT,
    holders: holders.filter((one) => one !== null),
    waiting: queue.size - queue.holders().length,
    waiters: waiters.filter((one) => one !== null),
    revoked,
  };
}
