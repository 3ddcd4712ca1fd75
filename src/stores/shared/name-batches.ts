/** The part of a request that decides which others may be in its batch. */
export interface BatchedNames {
  /** All names that the request touches. */
  readonly names: readonly string[];
  /** True for a request that makes no claim: a batch may have several of these for one name. */
  readonly sharesNames: boolean;
}

/**
 * Divides the requests into batches of at most `most`. No two requests of a batch touch the same name, unless
 * both have `sharesNames`: the requests of a batch are executed in one transaction, which is a claim's token and
 * the moment of a read. Requests with a common name stay in their order.
 */
export function toBatches<R>(
  requests: readonly R[],
  most: number,
  namesOf: (request: R) => BatchedNames,
): R[][] {
  const batches: R[][] = [];
  /** The index of the first batch after all claims on a name, and after all requests with that name. */
  const [afterClaims, afterAll] = [new Map<string, number>(), new Map<string, number>()];
  let firstWithRoom = 0;
  for (const request of requests) {
    const { names, sharesNames } = namesOf(request);
    const after = sharesNames ? afterClaims : afterAll;
    let at = Math.max(firstWithRoom, ...names.map((name) => after.get(name) ?? 0));
    while (batches[at]?.length === most) at++;
    if (at === batches.length) batches.push([]);
    batches[at]!.push(request);
    for (const name of names) {
      if (!sharesNames) afterClaims.set(name, at + 1);
      afterAll.set(name, Math.max(at + 1, afterAll.get(name) ?? 0));
    }
    if (batches[firstWithRoom]?.length === most) firstWithRoom++;
  }
  return batches;
}
