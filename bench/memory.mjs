import { Mutex } from "async-mutex";
import { createLocks } from "../dist/index.js";
import { memoryStore } from "../dist/stores/memory.js";
import { contest, inFlight, rateTable, sequentially } from "./lib/measure.mjs";

/** Acquire + release within one process. Goal: at least 0.4 × async-mutex, with leases and tokens. */
export async function run() {
  const locks = createLocks(memoryStore());
  const mutexes = Array.from({ length: 64 }, () => new Mutex());
  const withMutex = (of) => async (lane) => {
    const release = await mutexes[of(lane)].acquire();
    release();
  };
  const withLock = (of) => async (lane) => {
    const lease = await locks.acquire(`name ${of(lane)}`);
    await lease.release();
  };
  const own = (lane) => lane;
  const same = () => 0;
  const sections = [];
  for (const [title, way, of] of [
    ["one after another", sequentially, same],
    ["64 in flight, each its own name", (pair) => inFlight(64, pair), own],
    ["64 in flight, all the same name", (pair) => inFlight(64, pair), same],
  ]) {
    const results = await contest([
      { name: "async-mutex", run: way(withMutex(of)) },
      { name: "holdfast memory", run: way(withLock(of)) },
    ]);
    sections.push(`### Memory: ${title}\n\n${rateTable(results, "async-mutex")}`);
  }
  await locks.close();
  return sections.join("\n\n");
}
