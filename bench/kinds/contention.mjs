import { machineMs, sleepMs } from "../lib/clock.mjs";
import { contest } from "../lib/contest.mjs";
import { barPlot } from "../lib/plots.mjs";
import { allStarted } from "../lib/processes.mjs";
import { jain, median, ratios, spread } from "../lib/statistics.mjs";

/**
 * Everyone wants one name, holds it, and wants it again. Only a handover to *another* contender
 * counts: who polls by default takes it again while the others sleep, and that looks fast.
 */
export const settings = {
  rounds: 5,
  contenders: 100,
  processes: 4,
  holdMs: 1,
  ms: 2_000,
  warmUpMs: 200,
};
export const quick = { rounds: 1, contenders: 6, processes: 2, ms: 150, warmUpMs: 10 };

export const columns = ({ yardstick }) => ({
  handoversPerSecond: ["handovers", "/s"],
  ratio: [`handovers ÷ ${yardstick}`, "×"],
  commandsPerHandover: ["commands each", "count"],
  fairness: ["Jain fairness", "index"],
  longestWaitMs: ["longest wait", "ms"],
  starved: ["starved", "count"],
  failed: ["failed", "count"],
  heldTwice: ["held by two", "count"],
});

/** All processes get the message of the start within this time. */
const AHEAD_MS = 50;

export async function measure({ contestants, start, commands, options, progress }) {
  const { rounds, contenders, processes: count, holdMs, ms, warmUpMs, yardstick } = options;
  const turn = async ({ name }, round) => {
    const processes = await allStarted(Array.from({ length: count }, () => start(name)));
    try {
      await Promise.all(
        processes.map((one, i) =>
          one.call("warmUp", { name: `${name} ${round} ${i}`, holdMs, ms: warmUpMs }),
        ),
      );
      const before = await commands?.();
      const startMs = machineMs() + AHEAD_MS;
      const answers = processes.map((one, i) => {
        const ids = Array.from({ length: contenders }, (_, id) => id).filter(
          (id) => id % count === i,
        );
        return one.call("contend", { name: `${name} ${round}`, ids, holdMs, startMs, ms });
      });
      const records = await Promise.all(answers);
      const after = await commands?.();
      return tally(records, { contenders, startMs, ms, commands: after - before });
    } finally {
      // Processes that still wait can't be stopped in another way; the next contestant uses another name.
      await Promise.all(processes.map((one) => one.kill()));
    }
  };
  const { turns, failures } = await contest(contestants, { rounds, turn, progress });
  const rates = (name) => turns.get(name)?.map((one) => one.handoversPerSecond);
  const figures = {};
  for (const [name, all] of turns) {
    const of = (key) => all.map((one) => one[key]);
    figures[name] = {
      handoversPerSecond: spread(rates(name)),
      ratio: ratios(rates(name), rates(yardstick)),
      commandsPerHandover: commands === undefined ? undefined : spread(of("commandsPerHandover")),
      fairness: median(of("fairness")),
      longestWaitMs: Math.max(...of("longestWaitMs")),
      starved: Math.max(...of("starved")),
      failed: Math.max(...of("failed")),
      heldTwice: Math.max(...of("heldTwice")),
    };
  }
  return { figures, failures };
}

/** `records`: one a process, `{ grants, waiting, failed }`, with `grants` as [id, asked, granted, released, …]. */
export function tally(records, { contenders, startMs, ms, commands }) {
  const endMs = startMs + ms;
  const grants = records
    .flatMap((record) => rows(record.grants))
    .filter(({ grantedMs }) => grantedMs < endMs)
    .sort((a, b) => a.grantedMs - b.grantedMs);
  const shares = new Array(contenders).fill(0);
  let handovers = 0;
  let heldTwice = 0;
  let longestWaitMs = 0;
  let freeMs = 0;
  let last;
  for (const { id, askedMs, grantedMs, releasedMs } of grants) {
    shares[id]++;
    if (last !== undefined && last !== id) handovers++;
    if (grantedMs < freeMs) heldTwice++;
    freeMs = Math.max(freeMs, releasedMs);
    longestWaitMs = Math.max(longestWaitMs, grantedMs - askedMs);
    last = id;
  }
  for (const askedMs of records.flatMap((record) => record.waiting)) {
    longestWaitMs = Math.max(longestWaitMs, endMs - askedMs);
  }
  return {
    handoversPerSecond: (handovers / ms) * 1_000,
    commandsPerHandover: commands / handovers,
    fairness: jain(shares),
    longestWaitMs,
    starved: shares.filter((share) => share === 0).length,
    failed: records.reduce((sum, record) => sum + record.failed, 0),
    heldTwice,
  };
}

function rows(flat) {
  return Array.from({ length: flat.length / 4 }, (_, i) => {
    const [id, askedMs, grantedMs, releasedMs] = flat.subarray(i * 4, i * 4 + 4);
    return { id, askedMs, grantedMs, releasedMs };
  });
}

export const inChild = {
  /** Two of this process on a name of its own: compiles what is hot. */
  async warmUp({ name, holdMs, ms }, { adapter }) {
    const contenders = new Contenders(adapter, { name, holdMs, endMs: machineMs() + ms });
    await Promise.all([contenders.loop(0), contenders.loop(1)]);
  },
  async contend({ name, ids, holdMs, startMs, ms }, { adapter }) {
    const endMs = startMs + ms;
    const contenders = new Contenders(adapter, { name, holdMs, endMs });
    await sleepMs(Math.max(0, startMs - machineMs()));
    for (const id of ids) contenders.loop(id);
    await sleepMs(Math.max(0, endMs - machineMs()) + holdMs + 1);
    return contenders.record();
  },
};

class Contenders {
  #adapter;
  #options;
  #grants = [];
  #waiting = new Map();
  #failed = 0;

  constructor(adapter, options) {
    this.#adapter = adapter;
    this.#options = options;
  }

  async loop(id) {
    const { name, holdMs, endMs } = this.#options;
    for (let askedMs = machineMs(); askedMs < endMs; askedMs = machineMs()) {
      this.#waiting.set(id, askedMs);
      try {
        const handle = await this.#adapter.acquire(name);
        const grantedMs = machineMs();
        this.#waiting.delete(id);
        if (holdMs > 0) await sleepMs(holdMs);
        this.#grants.push(id, askedMs, grantedMs, machineMs());
        await this.#adapter.release(handle);
      } catch {
        this.#failed++;
        await sleepMs(1);
      }
    }
  }

  record() {
    const waiting = [...this.#waiting.values()];
    return { grants: Float64Array.from(this.#grants), waiting, failed: this.#failed };
  }
}

export function plots({ figures }, { title, contenders, holdMs }) {
  return {
    handovers: barPlot({
      title: `${title}: ${contenders} contenders for one name, held ${holdMs} ms`,
      axis: "handovers to another contender (more is better)",
      unit: "/s",
      bars: Object.entries(figures).map(([label, of]) => ({ label, value: of.handoversPerSecond })),
    }),
  };
}
