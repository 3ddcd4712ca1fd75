import { HoldfastError } from "../../core/errors.js";

/** How an acquire that threw ended, as a history has it. */
export function outcomeOf(error: unknown): "timeout" | "aborted" | "unknown" | "refused" {
  if (!HoldfastError.is(error)) return "aborted";
  if (error.code === "ACQUIRE_TIMEOUT") return "timeout";
  return error.retryable ? "unknown" : "refused";
}
