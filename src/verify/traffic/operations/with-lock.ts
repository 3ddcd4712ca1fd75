import type { AcquireOptions } from "../../../core/options.js";
import type { Locks } from "../../../locks.js";
import type { Performer } from "../performer.js";
import type { Options } from "../protocol.js";

/** The op of a re-entry inside the work of another `withLock`. */
const inner = (op: string): string => `${op}.inner`;

/**
 * Works under `withLock`, which releases by itself. With re-entry, it takes the same name again in
 * the middle of its work, as a function that calls another does: the inner lease is the outer one.
 */
export async function withLock(
  performer: Performer,
  locks: Locks,
  op: string,
  name: string,
  {
    wanted,
    workMs,
    reentrant,
  }: {
    readonly wanted: Options;
    readonly workMs: number;
    readonly reentrant: boolean;
  },
): Promise<void> {
  const asked = { note: op, ...wanted };
  const { longestTtl: _, limit: __, permits: ___, elected: ____, ...rest } = asked;
  const options = { ...rest, reentrant };
  const part = { op, name };
  await performer.request(op, [part], asked, (signal) =>
    locks.withLock(name, { ...options, signal }, (lease) =>
      performer.holdDuring(locks, part, lease, async () => {
        if (reentrant) await reenter(performer, locks, op, name, options);
        await performer.use(op, workMs);
      }),
    ),
  );
}

async function reenter(
  performer: Performer,
  locks: Locks,
  op: string,
  name: string,
  options: AcquireOptions,
): Promise<void> {
  const part = { op: inner(op), name, within: op };
  const { signal: _, ...asked } = options;
  await performer.request(part.op, [part], asked, (signal) =>
    locks.withLock(name, { ...options, signal }, (lease) =>
      performer.holdDuring(locks, part, lease, async () => {}),
    ),
  );
}
