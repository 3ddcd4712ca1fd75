import { randomFillSync } from "node:crypto";

/** Chance as the core sees it. Injected, so that a run can be replayed from its seed. */
export interface Random {
  /** 144 random bits, as text. */
  grantId(): string;
  /** From 0 to below 1. */
  unit(): number;
}

const ID_BYTES = 18;
const POOL_BYTES = ID_BYTES * 256;

export function systemRandom(): Random {
  // One system call for many ids.
  const pool = Buffer.allocUnsafeSlow(POOL_BYTES);
  let used = POOL_BYTES;
  return {
    grantId() {
      if (used === POOL_BYTES) {
        randomFillSync(pool);
        used = 0;
      }
      used += ID_BYTES;
      return pool.toString("base64url", used - ID_BYTES, used);
    },
    unit: Math.random,
  };
}
