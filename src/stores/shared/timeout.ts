/** Whether the promise settles within the time. Rejects as the promise does. */
export async function settlesWithin(
  ms: number,
  promise: Promise<unknown>,
  { unref = false } = {},
): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
    if (unref) timer.unref();
  });
  try {
    return await Promise.race([promise.then(() => true), timeout]);
  } finally {
    clearTimeout(timer);
  }
}

/** The promise's value, or a rejection with `timeoutError()` if it does not settle within the time. */
export async function within<T>(
  ms: number,
  promise: Promise<T>,
  timeoutError: () => Error,
  options?: { unref?: boolean },
): Promise<T> {
  if (await settlesWithin(ms, promise, options)) return promise;
  throw timeoutError();
}
