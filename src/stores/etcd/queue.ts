import { UnsupportedError } from "../../core/errors.js";
import { ClaimQueue, type StandingClaim } from "../shared/sessions/claim-queue.js";
import type { Keys } from "./keys.js";
import type { KeyValue, WatchEvent } from "./rpc/messages.js";

/** Raised when an older Holdfast could misread what is kept of a name. */
const FORMAT = 1;

/** The value of a claim's key. */
export interface ClaimValue {
  readonly permits: number;
  readonly limit: number;
  readonly holder: string;
  readonly ttlMs: number;
  readonly atLeastMs: number;
  /** The time of the request by the claimant's own clock; only shown to people. */
  readonly atMs: number;
  /** Whether it was granted under another limit, and stays. */
  readonly held?: boolean;
}

export const encodeValue = (value: object): string => JSON.stringify({ format: FORMAT, ...value });

export function decodeValue<T>(value: string): T {
  let decoded: { format?: unknown } | null = null;
  try {
    decoded = JSON.parse(value) as { format?: unknown } | null;
  } catch {
    // Not JSON: written by another program.
  }
  if (decoded?.format === FORMAT) return decoded as T;
  if (typeof decoded?.format === "number") {
    throw new UnsupportedError(
      `a name is kept in format ${decoded.format}, which this version of Holdfast does not know: use the version that wrote it`,
    );
  }
  throw foreignValueError();
}

export const foreignValueError = (): UnsupportedError =>
  new UnsupportedError(
    "a key of Holdfast's prefix holds something that is not Holdfast's: delete it, or use another prefix",
  );

const NUMBERS = ["permits", "limit", "ttlMs", "atLeastMs", "atMs"] as const;

/** A client that may write the prefix may write anything: text among the numbers would reach terminals as it is. */
function decodeClaim(value: string): ClaimValue & { at?: string } {
  const decoded = decodeValue<ClaimValue & { at?: string }>(value);
  const { holder, at } = decoded;
  const isValid =
    NUMBERS.every((field) => Number.isFinite(decoded[field])) &&
    typeof holder === "string" &&
    (at === undefined || isNumeral(at));
  if (isValid) return decoded;
  throw foreignValueError();
}

/** Whether the value is a whole number as text: a revision may be too large for a number in JSON. */
export const isNumeral = (value: unknown): value is string =>
  typeof value === "string" && /^\d{1,20}$/.test(value);

/**
 * The value of a claim's key, or of its key for `atLeast`. `token`: needed if that key is written later than
 * the claim, as its revision is then not the token.
 */
export function encodeClaim(value: ClaimValue, token?: bigint): string {
  const { permits, limit, holder, ttlMs, atLeastMs, atMs, held } = value;
  const at = token === undefined ? undefined : String(token);
  return encodeValue({ permits, limit, holder, ttlMs, atLeastMs, atMs, held, at });
}

/** A claim on a name, as it stands in etcd: its token is the revision that created it. */
export interface StoredClaim extends ClaimValue, StandingClaim {
  readonly modRevision: bigint;
  readonly lease: bigint;
  /** The lease of the key that keeps the name closed by `atLeast`, if the claim was granted. */
  readonly atLeastLease: bigint | null;
}

/** A claim that holds its name. */
export interface GrantedClaim extends ClaimValue {
  readonly token: bigint;
  /** The lowest token that holds the name. */
  readonly floor: bigint;
}

/** The claims on one name at one revision. */
export class Queue extends ClaimQueue<StoredClaim> {
  readonly #keys: Keys;
  #revision = 0n;

  constructor(keys: Keys, kvs: readonly KeyValue[] = [], revision = 0n) {
    super();
    this.#keys = keys;
    const records = new Map<string, StoredClaim>();
    for (const kv of [...kvs].sort(byCreation)) this.#put(kv, records);
    // The key for `atLeast` may have been created long after its claim.
    const inOrder = [...records.values()].sort((one, two) => (one.token < two.token ? -1 : 1));
    this.claims = new Map(inOrder.map((record) => [record.grantId, record]));
    this.#revision = revision;
  }

  get revision(): bigint {
    return this.#revision;
  }

  /** A claim that is known to hold the name. */
  granted(grantId: string): GrantedClaim {
    return { ...this.get(grantId)!, floor: this.floor() };
  }

  /** Takes over what another queue of the name has; later changes of that one do not reach this one. */
  adopt(other: Queue): void {
    this.claims = new Map(other.claims);
    this.#revision = other.#revision;
  }

  /** Events come in the order of revisions; those that are known already are skipped. */
  apply(events: readonly WatchEvent[], revision: bigint): void {
    for (const { type, kv } of events) {
      if (kv.modRevision <= this.#revision) continue;
      if (type === "PUT") this.#put(kv, this.claims);
      else this.#delete(kv.key);
    }
    if (revision > this.#revision) this.#revision = revision;
  }

  #put(kv: KeyValue, records: Map<string, StoredClaim>): void {
    const { grantId, isAtLeast } = this.#keys.read(kv.key);
    const { createRevision, modRevision, lease } = kv;
    const there = records.get(grantId);
    if (isAtLeast && there !== undefined && !there.hasEnded) {
      records.set(grantId, { ...there, atLeastLease: lease });
      return;
    }
    const { at, ...value } = decodeClaim(kv.value);
    // The claim of a key for `atLeast` is gone: the key takes its place. A resize may have changed it.
    const token = isAtLeast && at !== undefined ? BigInt(at) : createRevision;
    const atLeastLease = isAtLeast ? lease : (there?.atLeastLease ?? null);
    const place = { grantId, token, modRevision, lease };
    records.set(grantId, { ...value, ...place, hasEnded: isAtLeast, atLeastLease });
  }

  #delete(key: string): void {
    const { grantId, isAtLeast } = this.#keys.read(key);
    const there = this.claims.get(grantId);
    if (there === undefined) return;
    const atLeastLease = isAtLeast ? null : there.atLeastLease;
    const hasEnded = there.hasEnded || !isAtLeast;
    if (hasEnded && atLeastLease === null) this.claims.delete(grantId);
    else this.claims.set(grantId, { ...there, hasEnded, atLeastLease });
  }
}

/** Within one revision, the claim comes before its key for `atLeast`: the keys are in that order. */
function byCreation(one: KeyValue, two: KeyValue): number {
  if (one.createRevision !== two.createRevision) {
    return one.createRevision < two.createRevision ? -1 : 1;
  }
  return one.key < two.key ? -1 : 1;
}
