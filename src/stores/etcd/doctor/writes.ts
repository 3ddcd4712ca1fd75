import { randomUUID } from "node:crypto";
import { danger, type Finding, ok } from "../../../doctor/finding.js";
import { latency } from "../../../doctor/measures.js";
import type { StoreUrl } from "../../url.js";
import { PREFIX } from "../keys.js";
import { explainError, OURS } from "../open.js";
import type { EtcdClient } from "../rpc/client.js";
import { EtcdError } from "../rpc/errors.js";

const PUTS = 7;
const SLOW_MS = 100;
/** If the doctor dies, its key goes with this lease. */
const LEASE_TTL_S = 10;
/** The requests may be repeated, and a change of leader is another finding. */
const REPEATABLE = { again: true };

/** Checks rights and latency by writes to a key of its own under our prefix. */
export async function checkWrites(client: EtcdClient, url: StoreUrl): Promise<Finding[]> {
  const key = `${PREFIX}doctor/${randomUUID()}`;
  const failures = new Map<string, string>();
  const attempt = async <T>(what: string, sent: Promise<T>): Promise<T | null> => {
    try {
      return await sent;
    } catch (error) {
      if (!(error instanceof EtcdError)) throw error;
      failures.set(what, explainError(error, url));
      return null;
    }
  };
  await attempt("read", client.range({ ...OURS, countOnly: true }));
  const lease = await attempt("grant leases", client.leaseGrant(LEASE_TTL_S));
  const tookMs: number[] = [];
  try {
    for (let i = 0; i < PUTS && failures.size === 0; i++) {
      const startMs = performance.now();
      const put = { key, value: "", lease: lease!.id };
      await attempt("write", client.txn({ success: [{ put }] }, REPEATABLE));
      tookMs.push(performance.now() - startMs);
    }
    if (lease !== null && failures.size === 0) {
      await attempt("renew leases", client.leaseKeepAlive(lease.id));
      await attempt("delete", client.txn({ success: [{ delete: { key } }] }, REPEATABLE));
    }
  } finally {
    if (lease !== null) await attempt("revoke leases", client.leaseRevoke(lease.id));
  }
  if (failures.size > 0) return [judgeFailures(failures, url)];
  return [
    ok("rights", `keys under ${PREFIX} can be read, written and deleted`),
    latency("a write", tookMs, {
      fromMs: SLOW_MS,
      because: "with a slow disk or network, elections are frequent and renewals come late",
      advice: "Give etcd a fast disk of its own",
    }),
  ];
}

function judgeFailures(failures: ReadonlyMap<string, string>, { user }: StoreUrl): Finding {
  const list = [...failures].map(([right, reason]) => `${right} (${reason})`).join("; ");
  const what = `${user === "" ? "the doctor" : `the user "${user}"`} was not able to ${list}`;
  const isDenied = [...failures.values()].some((reason) => /permission denied/.test(reason));
  if (!isDenied) return danger("writes", what);
  const advice = `etcdctl role grant-permission ROLE --prefix=true readwrite ${PREFIX}`;
  return danger("rights", what, advice);
}
