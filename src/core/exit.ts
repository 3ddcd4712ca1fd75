/** Something to close when the process gets a signal to end, or has nothing left to do. */
interface Closable {
  readonly signals: readonly string[];
  /** `isIdle`: no work is left that could need time to stop. */
  close(isIdle: boolean): Promise<void>;
}

const closables = new Set<Closable>();
const listeners = new Map<string, () => void>();

/** Closes `one` when the process is about to end. Returns a function that undoes this. */
export function closeOnExit(one: Closable): () => void {
  closables.add(one);
  if (closables.size === 1) process.on("beforeExit", closeIdle);
  for (const signal of one.signals) listen(signal);
  return () => {
    closables.delete(one);
    if (closables.size === 0) process.removeListener("beforeExit", closeIdle);
    for (const signal of one.signals) {
      if (![...closables].some(({ signals }) => signals.includes(signal))) unlisten(signal);
    }
  };
}

function listen(signal: string): void {
  if (listeners.has(signal)) return;
  const listener = (): void => void closeAndEnd(signal);
  listeners.set(signal, listener);
  // First in the list: a listener that is called once is gone from the list afterwards.
  process.prependListener(signal as NodeJS.Signals, listener);
}

function unlisten(signal: string): void {
  const listener = listeners.get(signal);
  if (listener !== undefined) process.removeListener(signal, listener);
  listeners.delete(signal);
}

/** A second signal finds no listener of ours, and ends the process at once. */
async function closeAndEnd(signal: string): Promise<void> {
  // Another listener decides when the process ends, and may do so before we are done.
  const alone = process.listenerCount(signal) === 1;
  unlisten(signal);
  // If the process lives on, those that do not listen to this signal stay open.
  await closeAll(false, (one) => alone || one.signals.includes(signal));
  if (alone) process.kill(process.pid, signal);
}

const closeIdle = (): void => void closeAll(true, () => true);

async function closeAll(isIdle: boolean, which: (one: Closable) => boolean): Promise<void> {
  await Promise.allSettled([...closables].filter(which).map((one) => one.close(isIdle)));
}
