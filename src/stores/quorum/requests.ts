import { counterOf, recordOf } from "./keys.js";
import type { NodeClaim, NodeClaimReply, NodeRelease, NodeReleaseReply } from "./node.js";

/** A request as the script gets it (see lua/usual.lua), and how its reply is read. */
export interface EncodedRequest<T> {
  /** Without those that the script computes itself, because each key costs the client time. */
  readonly keys: readonly string[];
  readonly args: readonly string[];
  readonly read: (reply: string) => T;
}

const REGISTER = { never: 0, "if-busy": 1, always: 2 } as const;

const keysOf = (name: string): readonly string[] => [recordOf(name), counterOf(name)];

/** The nodes of a quorum get the same request one after the other: it is encoded once. */
function once<Request extends object, T>(
  encode: (request: Request) => EncodedRequest<T>,
): (request: Request) => EncodedRequest<T> {
  let last: Request;
  let encoded: EncodedRequest<T>;
  return (request) => {
    if (request !== last) encoded = encode(request);
    last = request;
    return encoded;
  };
}

export const encodeClaim = once((claim: NodeClaim): EncodedRequest<NodeClaimReply> => {
  const { name, id, number, ttlMs, seq, atLeastMs, register, holder } = claim;
  const isUsual = atLeastMs === 0 && register !== "always" && Number.isInteger(ttlMs);
  const kind = isUsual ? "+" : "*";
  // The key is kept for a ms longer than the record counts: the server rounds its time.
  const body = `${number} ${id} ${atLeastMs} ${ttlMs} ${seq} ${holder}`;
  const args = [`${kind}${REGISTER[register]} ${Math.ceil(ttlMs) + 1} ${body}`];
  return { keys: keysOf(name), args, read: (reply) => readClaimReply(reply, number) };
});

export const encodeRelease = once((release: NodeRelease): EncodedRequest<NodeReleaseReply> => {
  const { name, id, number, unused, wakes, keptOutMs } = release;
  const isUsual = number >= 0 && !unused && wakes && keptOutMs === 0;
  const request = isUsual
    ? `-${number + 1} ${number} ${id} 0 `
    : `~${number} ${id} ${unused ? 1 : 0} ${wakes ? 1 : 0} ${Math.ceil(keptOutMs)}`;
  return { keys: keysOf(name), args: [request], read: (reply) => reply as NodeReleaseReply };
});

export const encodeRaise = (name: string, id: string, number: number): EncodedRequest<boolean> => {
  return { keys: keysOf(name), args: [`raise ${id} ${number}`], read: (reply) => reply === "yes" };
};

export const encodePass = (name: string): EncodedRequest<void> => {
  return { keys: keysOf(name), args: ["pass"], read: () => {} };
};

/** `proposed`: the number of the claim. */
function readClaimReply(reply: string, proposed: number): NodeClaimReply {
  if (reply.startsWith("+")) {
    return { kind: "recorded", number: proposed, micros: Number(reply.slice(1)) };
  }
  const [kind, first = "", second = "", id = ""] = reply.split(" ", 4);
  if (kind === "recorded") return { kind, number: Number(first), micros: Number(second) };
  if (kind === "recovering") return { kind, forMs: Number(first), micros: Number(second) };
  const holder = reply.split(" ").slice(4).join(" ");
  return { kind: "busy", micros: Number(first), freeInMs: Number(second), id, holder };
}
