import { isPromise } from "../../core/requests.js";
import type { Awaitable, Store } from "../../core/store.js";
import { delegate } from "../../testing/delegate.js";
import type { MessageFault } from "./schedule.js";
import type { World } from "./world.js";

/**
 * A store that replies to batches with too few or too many answers while such a fault is active. A
 * request without an answer may have been carried out or not.
 */
export function malformedBatches(
  world: World,
  client: string,
  store: Store,
  isActive: (fault: MessageFault) => boolean,
): Store {
  let batches = 0;
  const send = <Request, Answer>(
    requests: readonly Request[],
    command: (some: readonly Request[]) => Awaitable<readonly Answer[]>,
  ): Awaitable<readonly Answer[]> => {
    const chance = world.chance(`${client} sends batch ${++batches}`);
    const happens = (fault: MessageFault): boolean => isActive(fault) && chance.unit() < 0.5;
    const some = (): number => Math.floor(chance.unit() * requests.length);
    if (happens("answers are missing")) {
      const answered = some();
      const areAllDone = chance.unit() < 0.5;
      const done = areAllDone ? requests : requests.slice(0, answered);
      return whenAnswered(command(done), (answers) => answers.slice(0, answered));
    }
    if (!happens("answers are doubled")) return command(requests);
    const doubled = 1 + some();
    return whenAnswered(command(requests), (answers) => [...answers, ...answers.slice(0, doubled)]);
  };
  return {
    ...delegate(store),
    renew: (renewals) => send(renewals, (some) => store.renew(some)),
    release: (releases) => send(releases, (some) => store.release(some)),
  };
}

/** Applies `read` to the answer, at once if the store answers at once. */
export function whenAnswered<T, R>(answer: Awaitable<T>, read: (known: T) => R): Awaitable<R> {
  return isPromise(answer) ? answer.then(read) : read(answer);
}
