// Writes what each store offers, by its traits, into docs/primitives.md.
import { readFileSync, writeFileSync } from "node:fs";
import { matrixOf } from "holdfast/testing";
import { traitsOfAllStores } from "../dist/stores/registry.js";

const PAGE = new URL("../docs/primitives.md", import.meta.url);
const BETWEEN = /(<!-- matrix -->\n).*?(<!-- \/matrix -->)/s;

const page = readFileSync(PAGE, "utf8");
if (!BETWEEN.test(page)) throw new Error("docs/primitives.md has no place for the matrix");
writeFileSync(PAGE, page.replace(BETWEEN, `$1${matrixOf(await traitsOfAllStores())}\n$2`));
