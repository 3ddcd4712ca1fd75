// Writes the decision of `holdfast advise` into docs/advise.md, and draws it.
import { readFileSync, writeFileSync } from "node:fs";
import { advicePage } from "../dist/advise/page.js";
import { decisionPicture } from "../dist/advise/picture.js";

const PAGE = new URL("../docs/advise.md", import.meta.url);
const PICTURE = new URL("../docs/pictures/advise.svg", import.meta.url);
const BETWEEN = /(<!-- advise -->\n).*?(<!-- \/advise -->)/s;

const page = readFileSync(PAGE, "utf8");
if (!BETWEEN.test(page)) throw new Error("docs/advise.md has no place for the decision");
writeFileSync(
  PAGE,
  page.replace(BETWEEN, (_all, begin, end) => `${begin}${advicePage()}\n${end}`),
);
writeFileSync(PICTURE, decisionPicture());
