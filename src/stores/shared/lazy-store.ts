import { ClosedError } from "../../core/errors.js";
import type { Records } from "../../core/records.js";
import type { Store, Traits } from "../../core/store.js";
import { LOST } from "./lost.js";

/**
 * A store that is opened by the first request. If that fails, all requests that waited for it
 * reject, and the next request tries again. `traits`: those that it reports until it is open.
 */
export function lazyStore(traits: Traits, open: () => Promise<Store>): Store {
  let opened: Store | null = null;
  let opening: Promise<Store> | null = null;
  let closed = false;

  const ready = (): Promise<Store> => {
    if (closed) return Promise.reject(new ClosedError());
    opening ??= open()
      .then((store) => {
        opened = store;
        return store;
      })
      .finally(() => {
        opening = null;
      });
    return opening;
  };
  // A claim that is sent after close() would leave a grant that nobody uses.
  const unlessClosed = (store: Store): Store => {
    if (closed) throw new ClosedError();
    return store;
  };
  const use = <T>(request: (store: Store) => T | Promise<T>): T | Promise<T> =>
    opened === null ? ready().then(unlessClosed).then(request) : request(opened);

  const store: Store = {
    get traits() {
      return opened?.traits ?? traits;
    },
    claim: (claim, push) => use((store) => store.claim(claim, push)),
    renew: (renewals) => use((store) => store.renew(renewals)),
    // A store that was never opened holds nothing.
    release: (releases) =>
      opened === null && opening === null
        ? releases.map(() => LOST)
        : use((store) => store.release(releases)),
    revoke: (name, by) => use((store) => store.revoke(name, by)),
    resize: (name, limit) => use((store) => store.resize(name, limit)),
    inspect: (name) => use((store) => store.inspect(name)),
    list: (prefix, limit) => use((store) => store.list(prefix, limit)),
    async close() {
      closed = true;
      // Opening may hang for seconds; close() does not wait for it, and a store that opens later is closed.
      if (opening === null) await opened?.close();
      else opening.then((late) => late.close()).catch(() => {});
    },
  };
  if (traits.cannot.records === undefined) {
    Object.assign(store, {
      records: {
        read: (key) => use((store) => store.records!.read(key)),
        write: (write) => use((store) => store.records!.write(write)),
        take: (take) => use((store) => store.records!.take(take)),
      } satisfies Records,
    });
  }
  // Whether the store can observe is known when it is open; until then, elections poll.
  return Object.defineProperty(store, "observe", {
    get: () => opened?.observe?.bind(opened),
  });
}
