// Plays all stories, and writes what they print into docs/stories.md.
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { STORIES } from "../dist/cli/stories/index.js";
import { storyList, storySection } from "../dist/cli/stories/page.js";

const PAGE = new URL("../docs/stories.md", import.meta.url);
const MAIN = fileURLToPath(new URL("../dist/cli/main.js", import.meta.url));
const BETWEEN = /(<!-- stories -->\n).*(<!-- \/stories -->)/s;

const play = ({ name }) =>
  execFileSync(process.execPath, [MAIN, "story", name], { encoding: "utf8" });
const sections = STORIES.map((story) => storySection(story, play(story)));
const text = [storyList(), ...sections].join("\n\n");
const page = readFileSync(PAGE, "utf8");
writeFileSync(
  PAGE,
  page.replace(BETWEEN, (_all, begin, end) => `${begin}${text}\n${end}`),
);
