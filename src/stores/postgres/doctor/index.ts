import type { Store } from "../../../core/store.js";
import { check, type Finding, type Trial } from "../../../doctor/finding.js";
import { settlesWithin } from "../../shared/timeout.js";
import type { StoreUrl } from "../../url.js";
import { Connections } from "../connections.js";
import { postgresStore } from "../index.js";
import { openPool, schemaOf, toConnectError } from "../open.js";
import type { LockKind } from "../rights.js";
import { FORMAT } from "../schema.js";
import { postgresSessionStore } from "../session/index.js";
import { checkAccess, checkRights, judgeLogin, judgeTransport } from "./access.js";
import { type Facts, readFacts, TIMEOUT_MS } from "./facts.js";
import {
  checkClock,
  checkLatency,
  checkLockTable,
  checkPooler,
  checkReplicas,
  checkTransactions,
} from "./server.js";
import { judgeSettings } from "./settings.js";
import { judgeSize, judgeTables } from "./tables.js";

/** Reports what endangers locks on a PostgreSQL server. It makes no tables: they would belong to the wrong user. */
export async function examinePostgres(url: StoreUrl, trial: Trial): Promise<readonly Finding[]> {
  const schema = schemaOf(url);
  const kind = url.options.has("mode") ? "sessions" : "leases";
  const connections = new Connections(await openPool(url));
  try {
    const facts = await readFacts(connections, schema, kind).catch((error: unknown) => {
      throw toConnectError(error, url);
    });
    const server = await checkServer(connections, facts);
    const isRefused = server.some(({ about, level }) => about === "pooler" && level === "danger");
    const canTry = facts.schema?.format === FORMAT && facts.schema.hasFunctions && !isRefused;
    return [
      ...judgeSettings(facts),
      ...server,
      ...(kind === "sessions" ? await check("lock table", () => checkLockTable(connections)) : []),
      judgeTables(facts, schema),
      ...(await checkSchema(connections, facts)),
      judgeLogin(facts),
      ...judgeTransport(url),
      ...(canTry ? [await trial(await openStore(url, kind, schema))] : []),
    ];
  } finally {
    // The server may be gone by now.
    await settlesWithin(TIMEOUT_MS, connections.close()).catch(() => {});
  }
}

async function openStore(url: StoreUrl, kind: LockKind, schema: string): Promise<Store> {
  const make = kind === "sessions" ? postgresSessionStore : postgresStore;
  return make(await openPool(url), { schema, closeClient: true });
}

/**
 * The checks run one after the other, because a time that is measured must not include the statements of another
 * check.
 */
const checkServer = async (connections: Connections, facts: Facts): Promise<readonly Finding[]> => [
  ...(await check("pooler", () => checkPooler(connections, facts.kind))),
  ...(await check("clock", () => checkClock(connections))),
  ...(await check("latency", () => checkLatency(connections))),
  ...(await check("replicas", () => checkReplicas(connections, facts))),
  ...(await check("transactions", () => checkTransactions(connections))),
];

async function checkSchema(connections: Connections, facts: Facts): Promise<readonly Finding[]> {
  const { schema, settings } = facts;
  if (schema === null || schema.format === null) return [];
  return [
    judgeSize(schema.tables, settings.autovacuum),
    ...(await check("rights", () => checkRights(connections, facts, schema))),
    ...(await check("access", () => checkAccess(connections, facts, schema))),
  ];
}
