import {
  type Claim,
  type ClaimAnswer,
  type Grant,
  type HolderInfo,
  modeOf,
  type NameInfo,
  type Position,
  type ReleaseAnswer,
  type RenewAnswer,
} from "../../core/store.js";

/** JSON from a script on a server: numbers, text and lists; tokens as text. */
// biome-ignore lint/suspicious/noExplicitAny: it is read field by field
export type Json = any;

/** Lua has one kind of table: an empty list arrives as an empty object. */
export const listOf = <T>(value: unknown): readonly T[] =>
  Array.isArray(value) ? (value as readonly T[]) : [];

const OPENING_BRACE = 0x7b;

/** The reply to a claim of a free name is the token alone, every other is JSON. */
export function readClaimReply(reply: string, claim: Claim): ClaimAnswer {
  if (reply.charCodeAt(0) === OPENING_BRACE) return toClaimAnswer(JSON.parse(reply), claim.names);
  const token = BigInt(reply);
  const { ttlMs, seq } = claim;
  return { kind: "granted", grants: [{ token, floor: token, ttlMs, seq, handedOver: false }] };
}

function toClaimAnswer(reply: Json, names: readonly string[]): ClaimAnswer {
  switch (reply.kind) {
    case "granted":
      return { kind: "granted", grants: listOf<Json>(reply.grants).map(toGrant) };
    case "queued":
      return { kind: "queued", position: toPosition(reply.position) };
    case "busy":
      return { kind: "busy", name: names[reply.at]!, position: toPosition(reply.position) };
    case "mismatch":
      return { kind: "mismatch", name: names[reply.at]!, limit: reply.limit };
    case "full":
      return { kind: "full", name: names[reply.at]!, waiting: reply.waiting };
    default:
      return reply;
  }
}

export function toRenewAnswer(reply: Json): RenewAnswer {
  switch (reply.kind) {
    case "granted":
      return { kind: "granted", grant: toGrant(reply.grant) };
    case "queued":
      return { kind: "queued", position: toPosition(reply.position) };
    default:
      return reply;
  }
}

export const readReleaseReply = (reply: string): ReleaseAnswer =>
  reply === "released" ? reply : (JSON.parse(reply) as ReleaseAnswer);

export const readHolders = (reply: string): readonly HolderInfo[] =>
  listOf<Json>(JSON.parse(reply)).map(toHolder);

export function toNameInfo(info: Json, name: string): NameInfo | null {
  const holders = listOf<Json>(info.holders);
  const waiters = listOf<Json>(info.waiters);
  const revoked = listOf<Json>(info.revoked);
  if (holders.length + waiters.length + revoked.length === 0) return null;
  return {
    name,
    limit: info.limit,
    holders: holders.map(toHolder),
    waiting: info.waiting,
    waiters: waiters.map(({ limit, ...rest }) => ({
      ...rest,
      mode: modeOf({ permits: rest.permits, limit }),
    })),
    revoked: revoked.map((one) => ({ ...one, token: BigInt(one.token) })),
  };
}

const toGrant = ({ token, floor, ttlMs, seq, handedOver }: Json): Grant => ({
  token: BigInt(token),
  floor: BigInt(floor),
  ttlMs,
  seq,
  handedOver,
});

const toPosition = ({ ahead, freeInMs, holder }: Json): Position => ({
  ahead,
  freeInMs: freeInMs ?? Number.POSITIVE_INFINITY,
  holder: holder ?? null,
});

const toHolder = ({ limit, token, ...rest }: Json): HolderInfo => ({
  ...rest,
  mode: modeOf({ permits: rest.permits, limit }),
  token: BigInt(token),
});
