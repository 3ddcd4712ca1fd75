import type { Deadlock, Stuck } from "../primitives/deadlocks.js";
import { Exit } from "./exit.js";
import { type Options, STORE_OPTIONS } from "./options.js";
import { formatMs, jsonText, masked, print, printable, quoted, shellWord } from "./output.js";
import { inNamespace, withLocks } from "./store.js";

const MOST_SHOWN = 5;

export async function deadlocks(options: Options): Promise<number> {
  const found = await withLocks(options, (locks) => locks.deadlocks(), []);
  if (options.json) print(jsonText(found.map(asJson)));
  else if (found.length === 0) print(`No deadlock ${inNamespace(options)}.`);
  else print(found.map((circle) => describe(circle, options)).join("\n\n"));
  return found.length === 0 ? Exit.ok : Exit.failed;
}

const asJson = (circle: Deadlock): object =>
  circle.map((one) => ({ ...one, waitingMs: Math.round(one.waitingMs) }));

function describe(circle: Deadlock, options: Options): string {
  const last = circle.length - 1;
  return [
    `Deadlock: ${circle.length} holders wait for each other in a circle, and none of them can go on.`,
    ...circle.map((one, at) => {
      const next = circle[at === last ? 0 : at + 1]!;
      return `  ${sentence(one, next)}${at === last ? "." : ";"}`;
    }),
    "End one of them. Or take a name from its holder by force, though it may still be at work:",
    `  ${wayOut(circle, options)}`,
  ].join("\n");
}

/** `next` blocks `one`: it holds the name, or waits for it further in front. */
function sentence(one: Stuck, next: Stuck): string {
  const holds = one.holds.length === 0 ? "" : `holds ${listed(one.holds)} and `;
  const blocker = printable(next.holder);
  const how = next.holds.includes(one.waitsFor)
    ? `which ${blocker} holds`
    : `for which ${blocker} waits in front`;
  return `${printable(one.holder)} ${holds}waits for ${quoted(one.waitsFor)} (for ${formatMs(one.waitingMs)}), ${how}`;
}

function listed(names: readonly string[]): string {
  const shown = names.slice(0, MOST_SHOWN).map(quoted).join(", ");
  return names.length > MOST_SHOWN ? `${shown} and ${names.length - MOST_SHOWN} more` : shown;
}

/** A command that frees a name which one of them holds and another waits for. */
function wayOut(circle: Deadlock, options: Options): string {
  const held = new Set(circle.flatMap(({ holds }) => holds));
  const name = circle.find(({ waitsFor }) => held.has(waitsFor))?.waitsFor ?? "NAME";
  const where = STORE_OPTIONS.flatMap((option) => {
    const value = options[option];
    return value === undefined ? [] : [`--${option}`, shellWord(masked(value))];
  });
  const words = name.startsWith("-")
    ? ["--force", ...where, "--", shellWord(name)]
    : [shellWord(name), "--force", ...where];
  return ["holdfast release", ...words].join(" ");
}
