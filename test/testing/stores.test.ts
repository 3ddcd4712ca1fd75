import { describe, expect, it } from "vitest";
import type { Store } from "../../src/core/store.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { delegate } from "../../src/testing/delegate.js";
import { FaultyStore, VirtualClock } from "../../src/testing.js";

/** A store that reports who observes it. */
function observed(): { store: Store; notify: () => void; observers: Set<() => void> } {
  const observers = new Set<() => void>();
  const store: Store = {
    ...delegate(memoryStore()),
    observe: (_name, changed) => {
      observers.add(changed);
      return () => observers.delete(changed);
    },
  };
  const notify = (): void => {
    for (const changed of observers) changed();
  };
  return { store, notify, observers };
}

describe.each<[string, (store: Store) => Store]>([
  ["a delegate", delegate],
  ["a FaultyStore", (store) => new FaultyStore(store, new VirtualClock())],
])("%s", (_, wrap) => {
  it("can observe where the store can", () => {
    const { store, notify, observers } = observed();
    let notified = 0;
    const undo = wrap(store).observe?.("name", () => notified++);
    notify();
    expect(notified).toBe(1);
    undo?.();
    expect(observers.size).toBe(0);
  });

  it("says that another Locks begins to use the store: the first that closes must not end it", () => {
    let users = 0;
    const store: Store = { ...delegate(memoryStore()), open: () => users++ };
    const wrapped = wrap(store);
    wrapped.open?.();
    wrapped.open?.();
    expect(users).toBe(2);
  });

  it("does not claim to observe where the store can't", () => {
    expect(wrap(memoryStore()).observe).toBeUndefined();
  });

  it("has every method of the contract", () => {
    const { store } = observed();
    const wrapped = wrap(store);
    const missing = Object.keys(store).filter((method) => !(method in wrapped));
    expect(missing).toEqual([]);
  });
});

it("a FaultyStore that holds pushes back holds back the calls to observers too", () => {
  const { store, notify } = observed();
  const faulty = new FaultyStore(store, new VirtualClock());
  let notified = 0;
  faulty.observe?.("name", () => notified++);
  faulty.faults.push = "hold";
  notify();
  expect(notified).toBe(0);
  faulty.deliverPushes();
  expect(notified).toBe(1);
});
