import type { LostAnswer } from "../../core/store.js";

/** The reply about a grantId that has neither a grant nor a ticket, when nothing more is known of it. */
export const LOST: LostAnswer = { kind: "lost", reason: "expired" };
