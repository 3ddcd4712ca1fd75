import { check, danger, type Finding, SEE_OTHERS, type Trial } from "../../../doctor/finding.js";
import type { StoreUrl } from "../../url.js";
import { explainError, openEtcdClientOf, openEtcdStore, reach } from "../open.js";
import type { EtcdClient } from "../rpc/client.js";
import { Code, EtcdError } from "../rpc/errors.js";
import { checkAccess } from "./access.js";
import { checkAgreement } from "./agreement.js";
import { judgeStatuses } from "./status.js";
import { checkWrites } from "./writes.js";

const MEMBERS_MS = 2_000;

/** Reports what endangers locks on a cluster of etcd. */
export async function examineEtcd(url: StoreUrl, trial: Trial): Promise<readonly Finding[]> {
  const client = await openEtcdClientOf(url);
  try {
    const unusable = await whyUnusable(client, url);
    const first = await client.status();
    const members = await client
      .memberList({ timeoutMs: MEMBERS_MS })
      .catch((error: EtcdError) => explainError(error, url));
    // Read before our own writes: on members with different data, they can lead to equal revisions.
    const data =
      first.length > 1 ? await check("data", () => checkAgreement(() => client.status())) : [];
    const writable = unusable === null || isDenied(unusable);
    const writes = writable ? await check("writes", () => checkWrites(client, url)) : [];
    const tried =
      unusable === null
        ? await openEtcdStore(url).then(trial, describeUnusable)
        : describeUnusable(unusable);
    const last = await client.status();
    return [
      ...judgeStatuses({ first, last, members }, url),
      ...data,
      ...writes,
      tried,
      ...(await check("access", () => checkAccess(url, members))),
    ];
  } finally {
    await client.close();
  }
}

/** Null if it can be used. Rejects if no member answers, or none lets us in. */
async function whyUnusable(client: EtcdClient, url: StoreUrl): Promise<Error | null> {
  try {
    await reach(client, url);
    return null;
  } catch (error) {
    const { cause } = error as Error;
    const isAlive = async (): Promise<boolean> =>
      (await client.status()).some((one) => one.error === undefined);
    if (cause instanceof EtcdError && (isDenied(cause) || (cause.retryable && (await isAlive())))) {
      return error as Error;
    }
    throw error;
  }
}

const isDenied = (error: Error): boolean =>
  (error instanceof EtcdError ? error : (error.cause as EtcdError)).grpcCode ===
  Code.PERMISSION_DENIED;

const describeUnusable = (error: Error): Finding =>
  danger("trial", `nothing can be locked: ${error.message}`, SEE_OTHERS);
