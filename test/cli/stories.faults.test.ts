import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { STORIES } from "../../src/cli/stories/index.js";
import { storySection } from "../../src/cli/stories/page.js";
import { needs } from "../support/needs.js";
import { Cli, holdfast, makeFolder, until } from "./helpers.js";

const page = readFileSync(new URL("../../docs/stories.md", import.meta.url), "utf8");

describe("holdfast story", () => {
  for (const story of STORIES) {
    it(`${story.name} goes as docs/stories.md tells: npm run stories`, async (context) => {
      if (story.needs !== undefined) needs(context, story.needs);
      const folder = makeFolder();
      const { code, stdout, stderr } = await holdfast(folder, ["story", story.name], {
        TMPDIR: folder,
      });
      expect(stderr).toBe("");
      expect(code).toBe(0);
      expect(`${page}\n`).toContain(`${storySection(story, stdout)}\n`);
      for (const line of stdout.split("\n").slice(2, -4))
        expect(line.length).toBeLessThanOrEqual(84);
      expect(readdirSync(folder)).toEqual([]);
    });
  }

  it("leaves nothing behind on Ctrl-C", async () => {
    const folder = makeFolder();
    const story = new Cli(folder, ["story", "oversold"], { TMPDIR: folder });
    await until("A is paused", () => story.stdout.includes("(is paused)"));
    story.signal("SIGINT");
    expect((await story.ended).code).toBe(130);
    expect(readdirSync(folder)).toEqual([]);
  });
});
