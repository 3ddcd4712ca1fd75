// A process that takes locks on command: one JSON request a line on stdin, one JSON answer a line on stdout.
import { createInterface } from "node:readline";
import { connect } from "../../dist/index.js";

const locks = await connect(process.argv[2], JSON.parse(process.argv[3] ?? "{}"));
const leases = new Map();

const commands = {
  async acquire({ name, options }) {
    const lease = await locks.acquire(name, options);
    leases.set(name, lease);
    return { token: String(lease.token), atMs: Date.now() };
  },
  async release({ name }) {
    return { result: await leases.get(name).release(), atMs: Date.now() };
  },
  async state({ name }) {
    const lease = leases.get(name);
    return { state: lease.state, aborted: lease.signal.aborted };
  },
  /** Takes the lock again and again, and reports each grant. */
  async loop({ name, times }) {
    const tokens = [];
    for (let i = 0; i < times; i++) {
      await locks.withLock(name, { wait: Number.POSITIVE_INFINITY }, async (lease) => {
        tokens.push(String(lease.token));
        await new Promise((resolve) => setImmediate(resolve));
      });
    }
    return { tokens };
  },
};

process.stdout.write(`${JSON.stringify({ id: 0, ready: true })}\n`);
for await (const line of createInterface({ input: process.stdin })) {
  const { id, command, ...args } = JSON.parse(line);
  commands[command](args)
    .catch((error) => ({ error: error.code ?? String(error), message: error.message }))
    .then((answer) => process.stdout.write(`${JSON.stringify({ id, ...answer })}\n`));
}
await locks.close();
