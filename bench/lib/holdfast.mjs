/** Holdfast on any store: `connect(place, options)` → Locks. */
export const holdfast = (connect) => ({
  name: "Holdfast",
  async open(place, { ttlMs }) {
    const locks = await connect(place, { ttl: ttlMs, wait: Number.POSITIVE_INFINITY });
    return {
      acquire: (name) => locks.acquire(name),
      release: (lease) => lease.release(),
      close: () => locks.close(),
      expiresInMs: async (name) => (await locks.inspect(name)).holders[0].expiresInMs,
      isHeld: (lease) => lease.state === "held",
      signal: (lease) => lease.signal,
    };
  },
});
