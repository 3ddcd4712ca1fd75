import type { Grant } from "../../core/store.js";
import { readPushedGrant } from "../shared/pushed-grant.js";

/** A message to a waiter of this process, as notify_waiter() in sql/names.sql sends it. */
export type Message =
  | { readonly kind: "look"; readonly grantId: string }
  | { readonly kind: "granted"; readonly grantId: string; readonly grant: Grant };

const MESSAGE =
  /^(?:look|granted (\d{1,16}) (\d{1,16}) (\d{1,16}) (\d{1,16})) ([^\p{Cc}]{1,1000})$/u;

/**
 * Null: the text is no message, and is to be ignored. The channel of a process is random, so only those who can
 * read the tables know it; and only they and the waiter know its grantId.
 */
export function parseMessage(text: string): Message | null {
  const [, token, floor, ttl, seq, grantId] = MESSAGE.exec(text) ?? [];
  if (grantId === undefined) return null;
  if (token === undefined) return { kind: "look", grantId };
  const grant = readPushedGrant({ token, floor, ttlMs: Number(ttl) / 1_000, seq: Number(seq) });
  return grant === null ? null : { kind: "granted", grantId, grant };
}
