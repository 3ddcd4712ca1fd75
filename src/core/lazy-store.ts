import type { Clock } from "./clock.js";
import { ClosedError } from "./errors.js";
import { systemRuntime } from "./runtime.js";
import type { LostAnswer, Store, Traits } from "./store.js";

const NOTHING_HELD: LostAnswer = { kind: "lost", reason: "expired" };

/** `close()` waits this long for an attempt to open the store, which may hang for seconds. */
const LAST_ATTEMPT_MS = 100;

/**
 * A store that is opened by the first request which needs it. A failed attempt is the answer to the
 * requests that waited for it, and the next request tries again.
 */
export function lazyStore(
  traits: Traits,
  open: () => Promise<Store>,
  clock: Clock = systemRuntime().clock,
): Store {
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
  // A request that waited for the store until after close() would leave a grant for nobody.
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
        ? releases.map(() => NOTHING_HELD)
        : use((store) => store.release(releases)),
    revoke: (name, by) => use((store) => store.revoke(name, by)),
    resize: (name, limit) => use((store) => store.resize(name, limit)),
    inspect: (name) => use((store) => store.inspect(name)),
    list: (prefix, limit) => use((store) => store.list(prefix, limit)),
    async close() {
      closed = true;
      if (opening !== null) await closeAttempt(opening, clock);
      else await opened?.close();
    },
  };
  // Known when it is open; until then, leaders are observed by looking.
  return Object.defineProperty(store, "observe", {
    get: () => opened?.observe?.bind(opened),
  });
}

/** Closes the store once it is open. An attempt that hangs is not waited for: nobody uses the store. */
function closeAttempt(opening: Promise<Store>, clock: Clock): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = clock.after(LAST_ATTEMPT_MS, resolve);
    timer.keepAlive(true);
    opening.then(
      (store) => {
        timer.cancel();
        Promise.resolve(store.close()).then(resolve, reject);
      },
      () => {
        timer.cancel();
        resolve();
      },
    );
  });
}
