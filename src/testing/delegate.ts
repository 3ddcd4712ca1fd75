import type { Store } from "../core/store.js";

/**
 * A plain object that forwards to the store: `{ ...delegate(store), renew: … }` replaces one
 * method.
 */
export function delegate(store: Store): Store {
  const { observe, open, records } = store;
  return {
    traits: store.traits,
    claim: (claim, push) => store.claim(claim, push),
    renew: (renewals) => store.renew(renewals),
    release: (releases) => store.release(releases),
    revoke: (name, by) => store.revoke(name, by),
    resize: (name, limit) => store.resize(name, limit),
    inspect: (name) => store.inspect(name),
    list: (prefix, limit) => store.list(prefix, limit),
    ...(observe === undefined ? {} : { observe: observe.bind(store) }),
    ...(records === undefined ? {} : { records }),
    ...(open === undefined ? {} : { open: open.bind(store) }),
    close: () => store.close(),
  };
}
