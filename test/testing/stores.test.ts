import { describe, expect, it } from "vitest";
import type { Store } from "../../src/core/store.js";
import { memoryStore } from "../../src/stores/memory.js";
import { delegate } from "../../src/testing/delegate.js";
import { FaultyStore, VirtualClock } from "../../src/testing/index.js";

/** One that tells who observes it. */
function observed(): { store: Store; tell: () => void; observers: Set<() => void> } {
  const observers = new Set<() => void>();
  const store: Store = {
    ...delegate(memoryStore()),
    observe: (_name, changed) => {
      observers.add(changed);
      return () => observers.delete(changed);
    },
  };
  const tell = (): void => {
    for (const changed of observers) changed();
  };
  return { store, tell, observers };
}

describe.each<[string, (store: Store) => Store]>([
  ["a delegate", delegate],
  ["a FaultyStore", (store) => new FaultyStore(store, new VirtualClock())],
])("%s", (_, wrap) => {
  it("observes where the store can", () => {
    const { store, tell, observers } = observed();
    let told = 0;
    const undo = wrap(store).observe?.("name", () => told++);
    tell();
    expect(told).toBe(1);
    undo?.();
    expect(observers.size).toBe(0);
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

it("a FaultyStore holds back what observers are told, with the pushes", () => {
  const { store, tell } = observed();
  const faulty = new FaultyStore(store, new VirtualClock());
  let told = 0;
  faulty.observe?.("name", () => told++);
  faulty.faults.push = "hold";
  tell();
  expect(told).toBe(0);
  faulty.deliverPushes();
  expect(told).toBe(1);
});
