import type { StoreClock } from "../../core/clock.js";
import type {
  Claim,
  ClaimAnswer,
  Grant,
  HolderInfo,
  NameInfo,
  Position,
  ReleaseAnswer,
  RenewAnswer,
  Renewal,
} from "../../core/store.js";
import { type ShownClaim, toHolderInfo, toNameInfo } from "./name-info.js";

/** JSON from a script on a server: numbers, text and lists; tokens as text. */
// biome-ignore lint/suspicious/noExplicitAny: it is read field by field
export type Json = any;

/** Lua has one kind of table: an empty list arrives as an empty object. */
export const listOf = <T>(value: unknown): readonly T[] =>
  Array.isArray(value) ? (value as readonly T[]) : [];

const OPENING_BRACE = 0x7b;

const isJson = (reply: string): boolean => reply.charCodeAt(0) === OPENING_BRACE;

/** The reply to a claim of a free name is the token alone, every other is JSON. */
export const readClaimReply = (reply: string, claim: Claim): ClaimAnswer =>
  isJson(reply)
    ? toClaimAnswer(JSON.parse(reply), claim.names)
    : { kind: "granted", grants: [toSoleGrant(reply, claim)] };

/** The reply to a renewal of a name's only claim may be the token alone, every other is JSON. */
export const readRenewReply = (reply: string, renewal: Renewal): RenewAnswer =>
  isJson(reply)
    ? toRenewAnswer(JSON.parse(reply))
    : { kind: "granted", grant: toSoleGrant(reply, renewal) };

/** The grant of a name's only holder, with the ttl that was requested. */
function toSoleGrant(reply: string, { ttlMs, seq }: Pick<Claim, "ttlMs" | "seq">): Grant {
  const token = BigInt(reply);
  return { token, floor: token, ttlMs, seq, handedOver: false };
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

/** Claims on a name as a server describes them, in order, on its clock. */
export interface DescribedClaims {
  readonly nowMs: number;
  readonly claims: unknown;
}

export interface DescribedName extends DescribedClaims {
  readonly name: string;
}

export const readNameInfo = (described: DescribedClaims, name: string): NameInfo | null =>
  toNameInfo(claimsOf(described), clockOf(described), name);

export const readHolders = (described: DescribedClaims): readonly HolderInfo[] =>
  claimsOf(described).map((one) => toHolderInfo(one, described.nowMs, clockOf(described)));

const claimsOf = ({ claims }: DescribedClaims): readonly ShownClaim[] =>
  listOf<Json>(claims).map(({ token, ...rest }) => ({ ...rest, token: BigInt(token) }));

/** The server has one clock for leases and `atLeast`. */
const clockOf = ({ nowMs }: DescribedClaims): StoreClock => ({
  nowMs: () => nowMs,
  wallMs: () => nowMs,
});

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
