import { pathToFileURL } from "node:url";

/** The contestant that `--against` adds: the build of another checkout. */
export const BEFORE = "before";

const HERE = { name: "Holdfast", dist: new URL("../../dist/", import.meta.url) };

/** run.mjs sets the variable, and the processes that it starts inherit it. */
function builds() {
  const { HOLDFAST_BENCH_AGAINST: folder } = process.env;
  return folder ? [{ name: BEFORE, dist: pathToFileURL(`${folder}/dist/`) }, HERE] : [HERE];
}

/**
 * Holdfast on any store, once for each build that is measured. `connect({ load, name }, place, options)`
 * returns the `Locks`; `load(path)` imports a module of that build.
 */
export const holdfast = (connect, more = {}) =>
  builds().map((build) => contestant(build, connect, more));

const contestant = ({ name, dist }, connect, more) => ({
  name,
  ...more,
  async open(place, { ttlMs }) {
    const load = (path) => import(new URL(path, dist).href);
    const options = { ttl: ttlMs, wait: Number.POSITIVE_INFINITY };
    const locks = await connect({ load, name }, place, options);
    return {
      acquire: (name) => locks.acquire(name),
      tryAcquire: (name) => locks.tryAcquire(name),
      release: (lease) => lease.release(),
      renewAll: (leases) => Promise.all(leases.map((lease) => lease.renew())),
      close: () => locks.close(),
      list: (limit) => locks.list({ limit }),
      expiresInMs: async (name) => (await locks.inspect(name)).holders[0].expiresInMs,
      isHeld: (lease) => lease.state === "held",
      signal: (lease) => lease.signal,
    };
  },
});
