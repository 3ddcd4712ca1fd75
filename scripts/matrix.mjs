// Writes what each store offers, by its traits, into docs/primitives.md.
import { readFileSync, writeFileSync } from "node:fs";
import { ETCD_TRAITS } from "holdfast/stores/etcd";
import { MEMORY_TRAITS } from "holdfast/stores/memory";
import { REDIS_CLUSTER_TRAITS, REDIS_TRAITS } from "holdfast/stores/redis";
import { SQLITE_TRAITS } from "holdfast/stores/sqlite";
import { matrixOf } from "holdfast/testing";

const STORES = [MEMORY_TRAITS, SQLITE_TRAITS, REDIS_TRAITS, REDIS_CLUSTER_TRAITS, ETCD_TRAITS];
const PAGE = new URL("../docs/primitives.md", import.meta.url);
const BETWEEN = /(<!-- matrix -->\n).*?(<!-- \/matrix -->)/s;

const page = readFileSync(PAGE, "utf8");
if (!BETWEEN.test(page)) throw new Error("docs/primitives.md has no place for the matrix");
writeFileSync(PAGE, page.replace(BETWEEN, `$1${matrixOf(STORES)}\n$2`));
