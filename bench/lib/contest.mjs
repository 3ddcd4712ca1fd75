/**
 * Rounds in which every contestant has a turn, so that whatever else the machine does meets all of
 * them. The first of a round changes from round to round. One that throws is out, with its reason.
 * Returns what each turn returned: `{ turns: Map(name → one a round), failures: Map(name → error) }`.
 */
export async function contest(contestants, { rounds, turn, progress = () => {} }) {
  const turns = new Map(contestants.map(({ name }) => [name, []]));
  const failures = new Map();
  for (let round = 0; round < rounds; round++) {
    progress(`round ${round + 1} of ${rounds}`);
    for (const contestant of rotated(contestants, round)) {
      if (failures.has(contestant.name)) continue;
      try {
        turns.get(contestant.name).push(await turn(contestant, round));
      } catch (error) {
        failures.set(contestant.name, error);
        turns.delete(contestant.name);
      }
    }
  }
  return { turns, failures };
}

/**
 * One round for operations so short that a turn would meet weather of its own: slices of at least
 * one operation and about `sliceMs`, in turn, until each contestant has had `ms`.
 * Returns `Map(name → the time of each operation)`.
 */
export async function interleave(
  contestants,
  { ms, sliceMs, operate, nowMs = () => performance.now() },
) {
  const samplesMs = new Map(contestants.map(({ name }) => [name, []]));
  const spentMs = new Map(contestants.map(({ name }) => [name, 0]));
  let running = contestants;
  for (let slice = 0; running.length > 0; slice++) {
    for (const contestant of rotated(running, slice)) {
      const samples = samplesMs.get(contestant.name);
      const startedMs = nowMs();
      let fromMs = startedMs;
      do {
        await operate(contestant);
        const toMs = nowMs();
        samples.push(toMs - fromMs);
        fromMs = toMs;
      } while (fromMs - startedMs < sliceMs);
      spentMs.set(contestant.name, spentMs.get(contestant.name) + fromMs - startedMs);
    }
    running = running.filter(({ name }) => spentMs.get(name) < ms);
  }
  return samplesMs;
}

/** Operations a second with `width` lanes that never rest, and how many were done. */
export async function inFlight(width, ms, operate) {
  const startedMs = performance.now();
  let done = 0;
  const lane = async (number) => {
    while (performance.now() - startedMs < ms) {
      await operate(number);
      done++;
    }
  };
  await Promise.all(Array.from({ length: width }, (_, number) => lane(number)));
  return { perSecond: (done / (performance.now() - startedMs)) * 1_000, done };
}

const rotated = (list, by) => list.map((_, i) => list[(i + by) % list.length]);
