import type { Locks } from "../../../locks.js";

/** Observes the leader until it is aborted, and returns the number of changes. */
export async function observe(
  locks: Locks,
  name: string,
  { every, signal }: { readonly every: number; readonly signal: AbortSignal },
): Promise<number> {
  let changes = 0;
  try {
    for await (const _ of locks.election(name).observe({ every, signal })) changes++;
  } catch (error) {
    if (!signal.aborted) throw error;
  }
  return changes;
}
