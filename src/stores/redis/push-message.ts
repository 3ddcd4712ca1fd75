/** A message to the waiters of a process: it is a reason to ask the store, and proves nothing. */
export type PushMessage =
  /** Every waiter of the process looks. */
  | { readonly kind: "look" }
  /** The waiter with this grantId looks, or was probably granted the name. */
  | { readonly kind: "look" | "granted"; readonly grantId: string };

const MESSAGE = /^(look|granted) ([^\p{Cc}]{1,1000})$/u;

/** Reads `look`, `look ID` or `granted ID`. Null: the text is none of them, and is to be ignored. */
export function parsePushMessage(text: string): PushMessage | null {
  if (text === "look") return { kind: "look" };
  const [, kind, grantId] = MESSAGE.exec(text) ?? [];
  if (grantId === undefined) return null;
  return { kind: kind as "look" | "granted", grantId };
}
