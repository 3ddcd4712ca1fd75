import { HoldfastError } from "../../core/errors.js";

/** The outcome of an acquire that threw, in the words of a history. */
export function outcomeOf(error: unknown): "timeout" | "aborted" | "unknown" | "refused" {
  if (!HoldfastError.is(error)) return "aborted";
  if (error.code === "ACQUIRE_TIMEOUT") return "timeout";
  return error.retryable ? "unknown" : "refused";
}
