import type { Store } from "../core/store.js";

/** The same store, to be changed in part: `{ ...delegate(store), renew: … }`. A class's methods can't be spread. */
export function delegate(store: Store): Store {
  const { observe } = store;
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
    close: () => store.close(),
  };
}
