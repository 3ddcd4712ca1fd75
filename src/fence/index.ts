import type { NameStatus } from "../core/name-status.js";
import { readSequencer, type Sequencer, type SequencerOptions } from "../core/sequencer.js";

export { readSequencer, type Sequencer, type SequencerOptions } from "../core/sequencer.js";
export {
  checkEntry,
  checkResource,
  type EnterableFence,
  type Entry,
  type Fence,
  type Fenced,
  hasEntered,
  refuseUnlessEntered,
} from "./fence.js";
export type { FencedResource, FenceListOptions } from "./shared/list.js";
export { type FenceRefusals, fenceRefusals, type RefusedResource } from "./shared/refusals.js";

/**
 * Asks the store whether the grant of a sequencer still holds its name. Resolves to the sequencer, or to
 * null if the grant is over. Rejects with `InvalidArgumentError` as `readSequencer` throws, and with
 * `StoreUnavailableError`. The answer may be old when you use it: where the resource can keep a number, a
 * fence is safe, and this is not.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { checkSequencer } from "holdfast/fence";
 *
 * const locks = await connect("redis://127.0.0.1:6379");
 * declare const text: string; // from a request: lease.sequencer() of the sender
 * if ((await checkSequencer(locks, text)) === null) throw new Error("the sender's lease is over");
 * ```
 */
export async function checkSequencer(
  locks: { inspect(name: string): Promise<NameStatus | null> },
  text: string,
  options?: SequencerOptions,
): Promise<Sequencer | null> {
  const sequencer = readSequencer(text, options);
  const status = await locks.inspect(sequencer.name);
  const holds = status?.holders.some(
    ({ token, mode }) => token === sequencer.token && mode === sequencer.mode,
  );
  return holds ? sequencer : null;
}
