import { setMaxListeners } from "node:events";
import { guarded } from "./events.js";

/** A controller whose signal takes any number of listeners; otherwise Node prints a warning at the eleventh. */
export function unlimitedController(): AbortController {
  const controller = new AbortController();
  try {
    setMaxListeners(0, controller.signal);
  } catch {
    // A signal that is not Node's own, as in a simulated browser, has no limit.
  }
  return controller;
}

/** Rejects as soon as the signal aborts. */
export function unlessAborted<T>(promise: Promise<T>, signal?: AbortSignal): Promise<T> {
  if (signal === undefined) return promise;
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(signal.reason);
    if (signal.aborted) abort();
    promise.finally(onAbort(signal, abort)).then(resolve, reject);
  });
}

interface Listening {
  readonly listeners: Set<() => void>;
  readonly abort: () => void;
}

const listening = new WeakMap<AbortSignal, Listening>();

/**
 * Calls `listener` when a user's signal aborts; returns how to undo it. All listeners share one on the signal
 * itself, because the limit on those is the user's.
 */
export function onAbort(signal: AbortSignal, listener: () => void): () => void {
  const shared = listening.get(signal) ?? listenTo(signal);
  shared.listeners.add(listener);
  return () => {
    shared.listeners.delete(listener);
    if (shared.listeners.size > 0 || listening.get(signal) !== shared) return;
    listening.delete(signal);
    signal.removeEventListener("abort", shared.abort);
  };
}

/** Aborts the controller with the signal, at once if that has aborted; returns how to undo it. */
export function follow(controller: AbortController, signal: AbortSignal | undefined): () => void {
  if (signal === undefined) return () => {};
  const abort = (): void => controller.abort(signal.reason);
  if (!signal.aborted) return onAbort(signal, abort);
  abort();
  return () => {};
}

function listenTo(signal: AbortSignal): Listening {
  const listeners = new Set<() => void>();
  const abort = (): void => {
    listening.delete(signal);
    for (const listener of listeners) guarded(listener);
  };
  const shared = { listeners, abort };
  listening.set(signal, shared);
  signal.addEventListener("abort", abort, { once: true });
  return shared;
}
