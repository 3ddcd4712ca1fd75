/** Root may read, write and search everything: tests of permissions run as nobody. */
export async function asOrdinaryUser<T>(fn: () => T | Promise<T>): Promise<T> {
  if (process.getuid?.() !== 0) return fn();
  process.seteuid!(65_534);
  try {
    return await fn();
  } finally {
    process.seteuid!(0);
  }
}
