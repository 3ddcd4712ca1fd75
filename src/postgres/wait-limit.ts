import { AcquireTimeoutError, HoldfastError } from "../core/errors.js";
import { type Duration, orElse, parseDuration } from "../core/validate.js";
import { BACKEND_COLUMNS, type Backend } from "./cancel.js";
import { addressOfTx, type PostgresTx, sqlStateOf, toLockError } from "./tx.js";

/** The longest that PostgreSQL takes for `lock_timeout`. */
const MAX_MS = 2 ** 31 - 1;

// The subquery is a row before the outer list is computed: it reads the limit that was set before.
const LIMIT = `SELECT own, pg_catalog.set_config('lock_timeout', $1, true), ${BACKEND_COLUMNS}
  FROM (SELECT pg_catalog.current_setting('lock_timeout') AS own OFFSET 0) AS before`;
const RESTORE = "SELECT pg_catalog.set_config('lock_timeout', $1, true)";

export const checkWait = (wait: Duration | undefined): number =>
  parseDuration(orElse(wait, "10s"), "wait", { min: 0, infinite: true });

/** PostgreSQL reads 0 as no limit. */
const toLockTimeout = (waitMs: number): string =>
  waitMs === Number.POSITIVE_INFINITY
    ? "0"
    : String(Math.min(Math.max(Math.ceil(waitMs), 1), MAX_MS));

/**
 * Runs a step that waits for a lock no longer than this; afterwards, the transaction's own `lock_timeout`
 * holds again. Rejects with AcquireTimeoutError when the lock stays busy. The step gets the backend on which it waits.
 */
export async function withWaitLimit<T>(
  tx: PostgresTx,
  what: string,
  waitMs: number,
  step: (backend: Backend | null) => Promise<T>,
): Promise<T> {
  const startedMs = performance.now();
  try {
    // 0 needs no limit: the step does not wait.
    if (waitMs === 0) return await step(null);
    const { rows } = await tx.query(LIMIT, [toLockTimeout(waitMs)]);
    const { own, ...backend } = rows[0] as Backend & { own: string };
    const result = await step(backend);
    await tx.query(RESTORE, [own]);
    return result;
  } catch (error) {
    if (HoldfastError.is(error) || sqlStateOf(error) !== "55P03")
      throw toLockError(error, addressOfTx(tx));
    throw new AcquireTimeoutError(what, waitMs === 0 ? 0 : performance.now() - startedMs, null);
  }
}
