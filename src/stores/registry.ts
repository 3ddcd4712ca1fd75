import type { Traits } from "../core/store.js";
import { etcdKind } from "./etcd/kind.js";
import type { StoreKind } from "./kind.js";
import { memoryKind } from "./memory/kind.js";
import { postgresKind } from "./postgres/kind.js";
import { quorumKind } from "./quorum/kind.js";
import { redisKind } from "./redis/kind.js";
import { sqliteKind } from "./sqlite/kind.js";
import { parseUrl, refuseUnknownOptions, type StoreUrl } from "./url.js";
import { zookeeperKind } from "./zookeeper/kind.js";

/**
 * All stores: `connect`, the command line and the doctor know them from here. Lists of their own, which a new store may
 * need too, are in `fences.ts`, `advise/questions.ts`, `verify/targets/index.ts` and `verify/runner/versions.ts`.
 */
export const STORE_KINDS: readonly StoreKind[] = [
  memoryKind,
  sqliteKind,
  redisKind,
  quorumKind,
  postgresKind,
  etcdKind,
  zookeeperKind,
];

const BY_SCHEME = new Map(
  STORE_KINDS.flatMap((kind) => kind.schemes.map((scheme) => [scheme, kind] as const)),
);
const FORMS = new Map([...BY_SCHEME].map(([scheme, { form }]) => [scheme, form]));

/** Reads the URL of a store. Throws InvalidArgumentError, which never repeats the URL, if it is wrong. */
export function parseStoreUrl(url: unknown): StoreUrl {
  const parsed = parseUrl(url, FORMS);
  const kind = kindOf(parsed);
  refuseUnknownOptions(parsed, kind.options, kind.form);
  kind.check?.(parsed);
  return parsed;
}

/** The kind of store that a parsed URL names. */
export const kindOf = ({ scheme }: StoreUrl): StoreKind => BY_SCHEME.get(scheme)!;

/** The traits of all stores, in the order of the registry. */
export const traitsOfAllStores = (): Promise<Traits[]> =>
  Promise.all(
    STORE_KINDS.flatMap((kind) => kind.examples.map((url) => kind.traits(parseStoreUrl(url)))),
  );
