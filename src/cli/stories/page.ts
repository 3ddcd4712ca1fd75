import { STORIES } from "./index.js";
import type { Story } from "./stage.js";

/** A story on the page; `output` is what `holdfast story NAME` prints. */
export const storySection = (
  { name, title, tells, lesson, link, needs }: Story,
  output: string,
): string =>
  [
    `## ${name}`,
    `**${title}.** ${tells}`,
    "",
    "```",
    `$ holdfast story ${name}`,
    // The title and the lesson stand around it already.
    ...output.split("\n").slice(2, -4),
    "```",
    "",
    `${lesson} [More](${link}).${needs === undefined ? "" : " (It starts Redis servers of its own, which must be installed.)"}`,
  ].join("\n");

/** The list at the top of the page. */
export const storyList = (): string =>
  STORIES.map(({ name, title }) => `- [${title}](#${name})`).join("\n");
