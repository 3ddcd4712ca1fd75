// A service with an endpoint for Prometheus: PORT=9464 node examples/metrics.mjs
// Prometheus scrapes http://127.0.0.1:9464/metrics; monitoring/ has alert rules and a dashboard.
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "holdfast";
import { prometheusMetrics } from "holdfast/metrics";

// "order:17" counts as "order": a label has few values, however many orders there are.
const metrics = prometheusMetrics({ names: (name) => name.split(":")[0] });
const locks = await connect(process.env.HOLDFAST_STORE ?? "memory:", { ttl: "3s" });

const server = createServer((request, response) => {
  const { accept } = request.headers;
  response.setHeader("Content-Type", metrics.contentType(accept));
  response.end(metrics.text(accept));
});
server.listen(Number(process.env.PORT ?? 9464), "127.0.0.1", () => {
  console.log(`metrics: http://127.0.0.1:${server.address().port}/metrics`);
});

const over = new AbortController();
/** Workers of one process, which compete for the same orders. */
async function work(worker) {
  for (let i = worker; !over.signal.aborted; i++) {
    try {
      await locks.withLock(`order:${i % 2}`, { wait: "1m", signal: over.signal }, async (lease) => {
        const workMs = i % 5 === 0 ? 1_500 : 20;
        await sleep(workMs, undefined, { signal: AbortSignal.any([lease.signal, over.signal]) });
      });
    } catch (error) {
      if (over.signal.aborted) return;
      // A lost lease, or a store that is down: the worker goes on with the next order.
      console.error(error.message);
      await sleep(1_000, undefined, { signal: over.signal }).catch(() => {});
    }
  }
}
const workers = [1, 2, 3].map((worker) => work(worker));

for (const signal of ["SIGINT", "SIGTERM"]) {
  process.once(signal, async () => {
    over.abort();
    await Promise.all(workers);
    await locks.close();
    metrics.stop();
    server.close();
    server.closeAllConnections();
  });
}
