import { sleepMs } from "../lib/clock.mjs";
import { contest } from "../lib/contest.mjs";
import { heapBytes, longestBlockMs, rssBytes, startCpu } from "../lib/resources.mjs";
import { median } from "../lib/statistics.mjs";

/** Many leases held by one process and kept alive. */
export const settings = {
  rounds: 3,
  leases: 10_000,
  ttlMs: 10_000,
  watchMs: 10_000,
  idleMs: 2_000,
};
export const quick = { rounds: 1, leases: 200, watchMs: 200, idleMs: 50 };

export const flags = ["--expose-gc"];

export const columns = () => ({
  bytesPerLease: ["heap a lease beyond its name", "bytes"],
  bytesWithSignal: ["with its signal used", "bytes"],
  cpuPercent: ["CPU", "%"],
  commandsPerSecond: ["commands", "/s"],
  blockMs: ["longest block of the event loop", "ms"],
  idleBlockMs: ["the same when idle", "ms"],
  rssMegabytes: ["process", "MB"],
  lost: ["lost", "count"],
});

export async function measure({ contestants, start, commands, options, progress }) {
  const { rounds, leases, ttlMs, watchMs, idleMs } = options;
  const turn = async ({ name }) => {
    const holder = await start(name, { ttlMs, kept: true });
    try {
      const filled = await holder.call("fill", { leases, idleMs });
      const before = await commands?.();
      // The first renewals of all leases are part of what is watched.
      const watched = await holder.call("watch", { ms: watchMs });
      const after = await commands?.();
      const ended = await holder.call("end");
      return {
        ...filled,
        ...watched,
        ...ended,
        commandsPerSecond: ((after - before) / watchMs) * 1_000,
      };
    } finally {
      await holder.kill();
    }
  };
  const { turns, failures } = await contest(contestants, { rounds, turn, progress });
  const figures = {};
  for (const [name, all] of turns) {
    const of = (key) => median(all.map((one) => one[key]));
    figures[name] = Object.fromEntries(
      Object.keys(all[0])
        .filter((key) => !Number.isNaN(all[0][key]))
        .map((key) => [key, of(key)]),
    );
    // A block or a loss in one round is one too many.
    figures[name].blockMs = Math.max(...all.map((one) => one.blockMs));
    figures[name].lost =
      all[0].lost === undefined ? undefined : Math.max(...all.map((one) => one.lost));
  }
  return { figures, failures };
}

export const inChild = {
  async fill({ leases, idleMs }, self) {
    const { adapter } = self;
    // Flat strings: a rope would be counted as part of the lease.
    const names = Array.from({ length: leases }, (_, i) => Buffer.from(`name-${i}`).toString());
    self.handles = new Array(leases).fill(null);
    // Allocates what is allocated once.
    for (const name of names) await adapter.release(await adapter.acquire(name));
    const idleBlockMs = await longestBlockMs(idleMs);
    self.emptyBytes = heapBytes();
    for (let i = 0; i < leases; i++) {
      self.handles[i] = await adapter.acquire(names[i]);
      if (i % 100 === 0) await sleepMs(20);
    }
    return { idleBlockMs, bytesPerLease: (heapBytes() - self.emptyBytes) / leases };
  },
  async watch({ ms }) {
    const cpuPercent = startCpu();
    const blockMs = await longestBlockMs(ms);
    return { cpuPercent: cpuPercent(), blockMs, rssMegabytes: rssBytes() / 1e6 };
  },
  async end(_, self) {
    const { adapter, handles, emptyBytes } = self;
    const ended = {};
    if (adapter.isHeld) ended.lost = handles.filter((handle) => !adapter.isHeld(handle)).length;
    if (adapter.signal) {
      self.signals = handles.map((handle) => adapter.signal(handle));
      ended.bytesWithSignal = (heapBytes() - emptyBytes) / handles.length;
    }
    return ended;
  },
};

export const plots = () => ({});
