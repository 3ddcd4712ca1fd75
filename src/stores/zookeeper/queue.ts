import { UnsupportedError } from "../../core/errors.js";
import type { Position } from "../../core/store.js";
import { ClaimQueue, type StandingClaim } from "../shared/sessions/claim-queue.js";
import { comparePlaces, readBarrier, readClaim } from "./layout.js";

/** The data of a container: the last resize of the name. */
export interface Resize {
  readonly limit: number;
  /** Claims before this place have the new limit, whatever their nodes say. */
  readonly before: number;
  /** The grantIds of those that held the name, and stay. */
  readonly held: readonly string[];
}

/** A claim as it stands in ZooKeeper. Its `token` here is its place, which only orders it. */
export interface StoredClaim extends StandingClaim {
  readonly node: string;
  readonly place: number;
}

/** The claims on one name, as the names of their nodes tell. Labels and tokens are in the nodes' data. */
export class Queue extends ClaimQueue<StoredClaim> {
  /** The places of the barriers, by the names of their nodes. */
  #barriers = new Map<string, number>();
  #resize: Resize | null = null;
  readonly #name: string;

  constructor(name: string, children: readonly string[] = [], resize: Resize | null = null) {
    super();
    this.#name = name;
    this.reset(children, resize);
  }

  reset(children: readonly string[], resize: Resize | null): void {
    this.#resize = resize;
    this.#barriers = new Map();
    this.claims = new Map();
    const claims: StoredClaim[] = [];
    for (const child of children) {
      const claim = this.#toClaim(child);
      if (claim !== null) claims.push(claim);
    }
    claims.sort((one, two) => comparePlaces(one.place, two.place));
    for (const claim of claims) this.#add(claim);
  }

  /** Events come in the order of the changes: a new claim is the last. One that is known already is skipped. */
  created(node: string): void {
    const claim = this.#toClaim(node);
    if (claim !== null) this.#add(claim);
  }

  deleted(node: string): void {
    this.#barriers.delete(node);
    const keys = [readClaim(node)?.grantId ?? node, node];
    for (const key of keys) if (this.claims.get(key)?.node === node) this.claims.delete(key);
  }

  /** A claim behind a barrier is no holder: whether it fits is known when the resize is done. */
  override holders(): StoredClaim[] {
    const holders = super.holders();
    const at = holders.findIndex((one) => this.#isBarred(one));
    return at === -1 ? holders : holders.slice(0, at);
  }

  /** Without a label where none was read. */
  override position(grantId?: string): Position {
    const position = super.position(grantId);
    return position.holder === "" ? { ...position, holder: null } : position;
  }

  isBarred(grantId: string): boolean {
    const claim = this.get(grantId);
    return claim !== undefined && this.#isBarred(claim);
  }

  /** The nodes of the barriers before this place. */
  barriersBefore(place: number): string[] {
    const nodes: string[] = [];
    for (const [node, barrier] of this.#barriers) {
      if (comparePlaces(barrier, place) < 0) nodes.push(node);
    }
    return nodes;
  }

  /** Whether no claim and no barrier is before this one. */
  isFirst(grantId: string): boolean {
    for (const claim of this.claims.values()) {
      return claim.grantId === grantId && !this.#isBarred(claim);
    }
    return false;
  }

  /** The first claim before this one that has another limit; null if all have the same. */
  claimOfOtherLimit(grantId: string): StoredClaim | null {
    const own = this.get(grantId);
    for (const claim of this.claims.values()) {
      if (claim === own) return null;
      if (claim.limit !== own?.limit) return claim;
    }
    return null;
  }

  /** Puts the data of nodes that were read into the queue. */
  describe(node: string, { holder, ttlMs }: { holder: string; ttlMs: number }): void {
    const claim = readClaim(node);
    const there = claim === null ? undefined : this.get(claim.grantId);
    if (there?.node === node) this.claims.set(there.grantId, { ...there, holder, ttlMs });
  }

  /**
   * A claim that was made again under another session has two nodes until the first session ends. The last one
   * is the claim's; the other keeps its place as a claim of nobody, because others may wait behind it.
   */
  #add(claim: StoredClaim): void {
    const { grantId, node, place } = claim;
    const there = this.claims.get(grantId);
    if (there?.node === node || this.claims.has(node)) return;
    if (there === undefined) this.claims.set(grantId, claim);
    else if (comparePlaces(place, there.place) < 0) this.claims.set(node, withoutOwner(claim));
    else {
      const all = [...this.claims.values()].map((one) => (one === there ? withoutOwner(one) : one));
      this.claims = new Map([...all, claim].map((one) => [one.grantId, one]));
    }
  }

  #isBarred({ place }: StoredClaim): boolean {
    return this.barriersBefore(place).length > 0;
  }

  #toClaim(node: string): StoredClaim | null {
    const barrier = readBarrier(node);
    if (barrier !== null) {
      this.#barriers.set(node, barrier);
      return null;
    }
    const claim = readClaim(node);
    if (claim === null) {
      throw new UnsupportedError(
        `the node of the name ${JSON.stringify(this.#name)} in ZooKeeper holds ${JSON.stringify(node)}, ` +
          "which this version of Holdfast does not know: delete it, use the version that wrote it, or use another root",
      );
    }
    const { grantId, permits, limit, place } = claim;
    const resize = this.#resize;
    const isResized = resize !== null && comparePlaces(place, resize.before) < 0;
    return {
      node,
      place,
      grantId,
      token: BigInt(place),
      permits,
      limit: isResized ? resize.limit : limit,
      held: isResized && resize.held.includes(grantId),
      holder: "",
      ttlMs: Number.POSITIVE_INFINITY,
      atLeastMs: 0,
      hasEnded: false,
      atLeastLease: null,
    };
  }
}

const withoutOwner = (claim: StoredClaim): StoredClaim => ({ ...claim, grantId: claim.node });

/** Reads the data of a container; null: the name was not resized. */
export function decodeResize(data: Buffer, path: string): Resize | null {
  if (data.length === 0) return null;
  const value = parse(data) as Partial<Resize> | null;
  const { limit, before, held } = value ?? {};
  const isValid =
    Number.isSafeInteger(limit) &&
    Number.isSafeInteger(before) &&
    Array.isArray(held) &&
    held.every((one) => typeof one === "string");
  if (!isValid) throw foreignDataError(path);
  return value as Resize;
}

/** The data of a claim's node. */
export interface ClaimData {
  readonly holder: string;
  readonly ttlMs: number;
  /** The time of the request by the claimant's own clock; only shown to people. */
  readonly atMs: number;
}

/** A client that may write the root may write anything: text among the numbers would reach terminals as it is. */
export function decodeClaimData(data: Buffer, path: string): ClaimData {
  const value = parse(data) as Partial<ClaimData> | null;
  const { holder, ttlMs, atMs } = value ?? {};
  if (typeof holder !== "string" || !Number.isFinite(ttlMs) || !Number.isFinite(atMs)) {
    throw foreignDataError(path);
  }
  return value as ClaimData;
}

export function parse(data: Buffer): unknown {
  try {
    return JSON.parse(data.toString());
  } catch {
    return null;
  }
}

export const foreignDataError = (path: string): UnsupportedError =>
  new UnsupportedError(
    `the node ${JSON.stringify(path)} in ZooKeeper holds something that is not Holdfast's: ` +
      "delete it, or use another root",
  );
