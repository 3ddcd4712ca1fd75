// Adds tasks to a keyed queue, all at once, and notes in a file when each begins and ends.
// Usage: node queuer.mjs URL FILE WHO PLAN, where PLAN is { keys, tasks, ms, hold, options, locks }. It begins when a
// line arrives on its input. The task number `hold` waits for another line. Prints how many tasks ended how.
import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "holdfast";
import { keyedQueue } from "holdfast/lockfree";

const [url, file, who, plan] = process.argv.slice(2);
const { keys, tasks, ms, hold, options, locks: locksOptions } = JSON.parse(plan);
const locks = await connect(url, locksOptions);
const queue = keyedQueue(locks, options);
const lines = createInterface(process.stdin)[Symbol.asyncIterator]();
process.stdout.write("ready\n");
await lines.next();

const note = (what, key, number, lease) =>
  appendFileSync(file, `${JSON.stringify({ what, who, key, number, token: `${lease.token}` })}\n`);

const outcomes = {};
const settled = Array.from({ length: tasks }, (_, number) =>
  keys.map(async (key) => {
    const task = async (lease) => {
      note("begin", key, number, lease);
      await (number === hold ? lines.next() : sleep(ms));
      lease.assertHeld();
      note("end", key, number, lease);
      return "done";
    };
    const outcome = await queue.run(key, task).catch(({ code }) => code);
    outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
  }),
);
await Promise.all(settled.flat());
await queue.close();
await locks.close();
process.stdout.write(`${JSON.stringify(outcomes)}\n`);
process.exit(0);
