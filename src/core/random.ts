import { randomFillSync } from "node:crypto";

/** The source of the core's randomness, injected so that a run can be replayed from its seed. */
export interface Random {
  /** `gid-` and 144 random bits, as text. */
  grantId(): string;
  /** From 0 to below 1. */
  unit(): number;
}

/** Where ids come from; tests replace these. */
export interface RandomSources {
  fill(pool: Buffer): void;
  elapsedMs(): number;
  wallMs(): number;
}

const system: RandomSources = {
  fill: (pool) => void randomFillSync(pool),
  elapsedMs: () => performance.now(),
  wallMs: () => Date.now(),
};

const NS_PER_MS = 1e6;
/** The beginning of every id: "gid-" in base64url. By it, ids are found in texts that must not show them. */
const MARK = Buffer.from("gid-", "base64url");
const RANDOM_BYTES = 18;
const ID_BYTES = MARK.length + RANDOM_BYTES;
/** Whole words of 32 bits. */
const SLOT_BYTES = 24;
const POOL_BYTES = SLOT_BYTES * 256;

export function systemRandom(sources: RandomSources = system): Random {
  // One system call for many ids.
  const pool = Buffer.allocUnsafeSlow(POOL_BYTES);
  const words = new Int32Array(pool.buffer);
  let used = POOL_BYTES;

  return {
    grantId() {
      if (used === POOL_BYTES) {
        sources.fill(pool);
        used = 0;
      }
      const at = used;
      used += SLOT_BYTES;
      pool.set(MARK, at);
      // A clone of this machine has the same pool. The clocks, which need not be secret, make the ids of the two
      // differ.
      words[at / 4 + 1]! ^= sources.elapsedMs() * NS_PER_MS;
      words[at / 4 + 2]! ^= sources.wallMs();
      return pool.toString("base64url", at, at + ID_BYTES);
    },
    unit: Math.random,
  };
}

/** The text with all grantIds hidden. */
export function hideGrantIds(text: string): string {
  return text.replace(/gid-[\w-]{24}/g, "…");
}
