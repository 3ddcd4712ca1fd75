import { LOSS_DETAIL } from "./errors.js";
import type { Events, LoggedEvent } from "./event-fields.js";
import { printable } from "./text.js";

/** An event as one line for people. The logger gets the event's fields beside it. */
export function logLine<E extends LoggedEvent>(event: E, fields: Events[E]): string {
  return printable(LINES[event](fields));
}

const LINES: { readonly [E in LoggedEvent]: (fields: Events[E]) => string } = {
  asked: ({ name, mode, holder }) => `${holder} asks for ${q(name)} (${mode})`,
  granted: ({ name, token, holder, waitMs, handedOver }) =>
    `${q(name)} was ${handedOver ? "handed over" : "granted"} to ${holder} after ${ms(waitMs)}, with token ${token}`,
  "not-granted": ({ name, holder, waitMs, reason }) =>
    `${holder} did not get ${q(name)} within ${ms(waitMs)}: ${NOT_GRANTED[reason]}`,
  renewed: ({ name, ttlMs }) => `the lease on ${q(name)} was renewed for ${ms(ttlMs)}`,
  "renewal-failed": ({ name, cause, remainingMs }) =>
    `a renewal of the lease on ${q(name)} failed with ${ms(remainingMs)} left: ${cause}`,
  jeopardy: ({ name, cause, remainingMs }) =>
    `the lease on ${q(name)} can't be renewed, and is lost in ${ms(remainingMs)} if that goes on: ${cause}`,
  recovered: ({ name }) => `the lease on ${q(name)} is renewed again`,
  lost: ({ name, token, heldMs, reason }) =>
    `the lease on ${q(name)} (token ${token}) was lost after ${ms(heldMs)}: ${LOSS_DETAIL[reason]}`,
  released: ({ name, heldMs, outcome }) =>
    `${q(name)} was released after ${ms(heldMs)}` +
    (outcome === "unknown" ? "; the store has not confirmed it" : ""),
  revoked: ({ name, token, holder, by, why }) =>
    `${q(name)} was taken by force from ${holder} (token ${token}) by ${by}: ${why}`,
  unprotected: ({ name, holder, cause }) =>
    `${holder} runs WITHOUT the lock on ${q(name)}: ${cause}`,
};

const NOT_GRANTED: Record<Events["not-granted"]["reason"], string> = {
  busy: "it is held by another",
  timeout: "the wait is over",
  aborted: "the caller's signal was aborted",
  unavailable: "the store is unavailable",
  closed: "close() was called",
  refused: "the store refused the claim",
};

const q = (text: string): string => JSON.stringify(text);
const ms = (value: number): string => `${Math.round(value)} ms`;
