import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { STORIES } from "../../src/cli/stories/index.js";
import { storyList } from "../../src/cli/stories/page.js";
import { holdfast, makeFolder } from "./helpers.js";

const docs = fileURLToPath(new URL("../../docs", import.meta.url));
const page = readFileSync(join(docs, "stories.md"), "utf8");

describe("the page of the stories", () => {
  it("has the present list: npm run stories", () => {
    expect(page).toContain(storyList());
  });

  it.each(STORIES.map((story) => [story.name, story] as const))("tells %s", (name, story) => {
    expect(page).toContain(`## ${name}\n**${story.title}.** ${story.tells}\n`);
    expect(page).toContain(`1. ${story.failure}\n`);
    expect(page).toContain(`2. ${story.fix}\n`);
    expect(page).toContain(`${story.lesson} [More](${story.link}).`);
    expect(existsSync(join(docs, story.link.split("#")[0]!)), story.link).toBe(true);
  });
});

it("examples/README.md lists every program, and every story with its command, source and page", () => {
  const examples = join(docs, "../examples");
  const list = readFileSync(join(examples, "README.md"), "utf8");
  const programs = readdirSync(examples).filter((file) => file.endsWith(".mjs"));
  for (const file of programs) expect(list).toContain(`| [\`${file}\`](${file}) |`);
  const rows = list.split("\n").filter((line) => line.includes("| `npx holdfast story "));
  expect(rows).toHaveLength(STORIES.length);
  for (const [i, { name, title }] of STORIES.entries()) {
    expect(rows[i]).toContain(
      `| [${title}](../docs/stories.md#${name}) | \`npx holdfast story ${name}\` |`,
    );
    const [, source] = /`([a-z-]+\.ts)` \|$/.exec(rows[i]!)!;
    expect(readFileSync(join(examples, "../src/cli/stories", source!), "utf8")).toContain(
      `"${name}"`,
    );
  }
  // The README is part of the package, and src/ is not.
  for (const [, link] of list.matchAll(/\]\(([^)]+)\)/g))
    expect(link).toMatch(/^(\.\.\/docs\/.*|[\w-]+\.mjs)$/);
});

it("holdfast story lists the stories", async () => {
  const { code, stdout } = await holdfast(makeFolder(), ["story"]);
  expect(code).toBe(0);
  expect(stdout.trimEnd().split("\n").length).toBe(STORIES.length);
  for (const { name, title } of STORIES)
    expect(stdout).toMatch(new RegExp(`^${name} +${title}$`, "m"));
});
