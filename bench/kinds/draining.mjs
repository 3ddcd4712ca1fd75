import { machineMs, sleepMs } from "../lib/clock.mjs";
import { contest } from "../lib/contest.mjs";
import { barPlot } from "../lib/plots.mjs";
import { allStarted } from "../lib/processes.mjs";
import { ratios, spread } from "../lib/statistics.mjs";

/**
 * A queue of waiters in several processes; each gives the name back as soon as it has it. A waker without a lock is a
 * chain: each that is woken wakes the next. A run in which some waiter has not had the name after `limitMs` has failed.
 */
export const settings = {
  rounds: 15,
  waiters: 100,
  processes: 4,
  settledMs: 300,
  limitMs: 60_000,
};
export const quick = { rounds: 1, waiters: 6, processes: 2, settledMs: 50, limitMs: 20_000 };

export const columns = ({ yardstick }) => ({
  handoversPerSecond: ["handovers", "/s"],
  ratio: [`handovers ÷ ${yardstick}`, "×"],
  commandsPerHandover: ["commands each", "count"],
  packetsPerHandover: ["packets each", "count"],
  failed: ["failed runs", "count"],
});

export async function measure({ contestants, start, commands, packets, options, progress }) {
  const { rounds, waiters, processes: count, settledMs, limitMs, yardstick } = options;
  const opened = new Map();
  const open = async (name) => {
    const starts = Array.from({ length: count }, () => start(name));
    opened.set(name, await allStarted(starts));
  };
  const turn = async ({ name }, round) => {
    const processes = opened.get(name);
    const [holder] = processes;
    await holder.call("hold", { round });
    // In their order, so that each has its place in the queue.
    for (let id = 0; id < waiters; id++) {
      await processes[id % count].call("ask", { round, id, isLast: id === waiters - 1 });
    }
    await sleepMs(settledMs);
    const before = { commands: await commands?.(), packets: await packets?.() };
    const fromMs = await holder.call("release", { round });
    const ends = await Promise.all(processes.map((one) => one.call("drained", { limitMs })));
    const after = { packets: await packets?.(), commands: await commands?.() };
    const tookMs = Math.max(...ends.map(({ atMs }) => atMs)) - fromMs;
    const missing = ends.reduce((sum, end) => sum + end.missing, 0);
    const handovers = waiters - missing;
    if (missing > 0) {
      // Waiters that are left over would disturb the next runs.
      await Promise.all(processes.map((one) => one.kill()));
      await open(name);
    }
    // The pings of all sessions, which are no part of a handover.
    if (packets !== undefined) await sleepMs(tookMs);
    const pings = (await packets?.()) - after.packets;
    return {
      handoversPerSecond: (handovers / tookMs) * 1_000,
      commandsPerHandover: (after.commands - before.commands) / handovers,
      packetsPerHandover: (after.packets - before.packets - pings) / handovers,
      isFailed: missing > 0,
    };
  };
  try {
    const able = [];
    const failures = new Map();
    for (const contestant of contestants) {
      progress(`starting ${contestant.name}`);
      try {
        await open(contestant.name);
        // Compiles what is hot.
        await turn(contestant, "first");
        able.push(contestant);
      } catch (error) {
        failures.set(contestant.name, error);
      }
    }
    const result = await contest(able, { rounds, turn, progress });
    for (const [name, error] of result.failures) failures.set(name, error);
    const rates = (name) => result.turns.get(name)?.map((one) => one.handoversPerSecond);
    const figures = {};
    for (const [name, all] of result.turns) {
      const each = (key, isCounted) => (isCounted ? spread(all.map((one) => one[key])) : undefined);
      figures[name] = {
        handoversPerSecond: spread(rates(name)),
        ratio: ratios(rates(name), rates(yardstick)),
        commandsPerHandover: each("commandsPerHandover", commands !== undefined),
        packetsPerHandover: each("packetsPerHandover", packets !== undefined),
        failed: all.filter(({ isFailed }) => isFailed).length,
      };
    }
    return { figures, failures };
  } finally {
    for (const processes of opened.values()) {
      await Promise.all(processes.map((one) => one.kill()));
    }
  }
}

const nameOf = (round, id = "") => `draining ${round} ${id}`;

export const inChild = {
  async hold({ round }, self) {
    self.handle = await self.adapter.acquire?.(nameOf(round));
  },
  async ask({ round, id, isLast }, self) {
    const { adapter } = self;
    self.waiting ??= [];
    if (adapter.listen !== undefined) {
      const { woken } = await adapter.listen(nameOf(round, id));
      self.waiting.push(
        woken.then(async () => {
          const atMs = machineMs();
          if (!isLast) await adapter.wake(nameOf(round, id + 1));
          return atMs;
        }),
      );
      return;
    }
    self.waiting.push(
      adapter.acquire(nameOf(round)).then(async (handle) => {
        const atMs = machineMs();
        await adapter.release(handle);
        return atMs;
      }),
    );
  },
  async release({ round }, { adapter, handle }) {
    const atMs = machineMs();
    await (adapter.wake === undefined ? adapter.release(handle) : adapter.wake(nameOf(round, 0)));
    return atMs;
  },
  /** When the last waiter of this process was granted the name, or the time was over, and how many were not. */
  async drained({ limitMs }, self) {
    const waiting = self.waiting ?? [];
    self.waiting = [];
    const grantedMs = [];
    const granted = waiting.map((one) => one.then((atMs) => grantedMs.push(atMs)));
    await Promise.race([Promise.all(granted), sleepMs(limitMs)]);
    const missing = waiting.length - grantedMs.length;
    return { atMs: missing > 0 ? machineMs() : Math.max(...grantedMs), missing };
  },
};

export function plots({ figures }, { title, waiters }) {
  return {
    handovers: barPlot({
      title: `${title}: ${waiters} waiters, each gives the name back at once`,
      axis: "handovers (more is better)",
      unit: "/s",
      bars: Object.entries(figures).map(([label, of]) => ({ label, value: of.handoversPerSecond })),
    }),
  };
}
