import { machineMs, sleepMs } from "../lib/clock.mjs";
import { contest } from "../lib/contest.mjs";
import { distributionPlot } from "../lib/plots.mjs";
import { allStarted } from "../lib/processes.mjs";
import { median, quantile } from "../lib/statistics.mjs";
import { inChild as handover } from "./handover.mjs";

/**
 * The holder's process is killed: from the store's expiry of its lease to the next waiter running.
 * With `killed: "waiter"` the first in the queue is killed, and it is from the release to the second.
 */
export const settings = { rounds: 10, ttlMs: 1_000, killed: "holder" };
export const quick = { rounds: 1, ttlMs: 300 };

export const columns = ({ killed }) => ({
  p50Ms: [killed === "holder" ? "after the expiry: p50" : "after the release: p50", "ms"],
  maxMs: ["max", "ms"],
  samples: ["samples", "count"],
});

/** By when a waiter has surely left its ticket. */
const SETTLED_MS = 50;

export async function measure({ contestants, start, options, progress }) {
  const { rounds, ttlMs, killed } = options;
  const trial = killed === "holder" ? killHolder : killWaiter;
  const turn = async ({ name, pauseMs }, round) => {
    const processes = await allStarted(
      Array.from({ length: 3 }, () => start(name, { ttlMs, kept: true })),
    );
    try {
      await Promise.all(
        processes.map((one, i) => one.call("warmUp", { name: `${name} ${round} ${i}` })),
      );
      return await trial(processes, { name: `${name} ${round}`, ttlMs, pauseMs });
    } finally {
      await Promise.all(processes.map((one) => one.kill()));
    }
  };
  const { turns, failures } = await contest(contestants, { rounds, turn, progress });
  const figures = {};
  for (const [name, samplesMs] of turns) {
    figures[name] = {
      p50Ms: median(samplesMs),
      maxMs: quantile(samplesMs, 1),
      samples: samplesMs.length,
    };
  }
  return { figures, failures, samples: Object.fromEntries(turns) };
}

async function killHolder([holder, waiter], { name, ttlMs }) {
  await holder.call("hold", { name });
  await waiter.call("ask", { name });
  // At any moment between two renewals.
  await sleepMs(SETTLED_MS + Math.random() * ttlMs);
  await holder.kill();
  const [grantedMs, expiryMs] = await Promise.all([
    waiter.call("granted"),
    waiter.call("expiry", { name }),
  ]);
  return grantedMs - expiryMs;
}

async function killWaiter([holder, first, second], { name, pauseMs = 0 }) {
  await holder.call("hold", { name });
  for (const waiter of [first, second]) {
    await waiter.call("ask", { name });
    await sleepMs(SETTLED_MS);
  }
  await first.kill();
  await sleepMs(Math.random() * pauseMs);
  const [grantedMs, releasedMs] = await Promise.all([
    second.call("granted"),
    holder.call("release"),
  ]);
  return grantedMs - releasedMs;
}

export const inChild = {
  async hold({ name }, self) {
    self.handle = await self.adapter.acquire(name);
  },
  async ask({ name }, self) {
    const asked = self.adapter.acquire(name);
    self.granted = asked.then((handle) => ({ handle, atMs: machineMs() }));
  },
  async expiry({ name }, { adapter }) {
    return machineMs() + (await adapter.expiresInMs(name));
  },
  granted: handover.granted,
  release: handover.release,
};

export function plots({ samples }, { title, killed }) {
  return {
    latency: distributionPlot({
      title: `${title}: the ${killed} is killed`,
      axis: `${killed === "holder" ? "the store's expiry" : "release"} → the next waiter runs`,
      unit: "ms",
      series: Object.entries(samples).map(([label, values]) => ({ label, values })),
    }),
  };
}
