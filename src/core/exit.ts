/** What is to be closed when the process is asked to end, or has nothing left to do. */
interface Leaving {
  readonly signals: readonly string[];
  /** `nobody`: no work is left that could need time to stop. */
  close(nobody: boolean): Promise<void>;
}

const leaving = new Set<Leaving>();
const listeners = new Map<string, () => void>();

/** Returns how to undo it. */
export function closeOnExit(one: Leaving): () => void {
  leaving.add(one);
  if (leaving.size === 1) process.on("beforeExit", nothingLeft);
  for (const signal of one.signals) listen(signal);
  return () => {
    leaving.delete(one);
    if (leaving.size === 0) process.removeListener("beforeExit", nothingLeft);
    for (const signal of one.signals) {
      if (![...leaving].some(({ signals }) => signals.includes(signal))) unlisten(signal);
    }
  };
}

function listen(signal: string): void {
  if (listeners.has(signal)) return;
  const listener = (): void => void leave(signal);
  listeners.set(signal, listener);
  // First, because one who listens once is gone from the list when it has been called.
  process.prependListener(signal as NodeJS.Signals, listener);
}

function unlisten(signal: string): void {
  const listener = listeners.get(signal);
  if (listener !== undefined) process.removeListener(signal, listener);
  listeners.delete(signal);
}

/** A second signal finds no listener of ours, and ends the process at once. */
async function leave(signal: string): Promise<void> {
  // Who listens beside us decides about the end of the process, and may do so before we are done.
  const alone = process.listenerCount(signal) === 1;
  unlisten(signal);
  // If the process lives on, the others may too.
  await closeAll(false, (one) => alone || one.signals.includes(signal));
  if (alone) process.kill(process.pid, signal);
}

const nothingLeft = (): void => void closeAll(true, () => true);

async function closeAll(nobody: boolean, which: (one: Leaving) => boolean): Promise<void> {
  await Promise.allSettled([...leaving].filter(which).map((one) => one.close(nobody)));
}
