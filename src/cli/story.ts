import { mkdtempSync, rmSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import { missing } from "../verify/lab/requirements.js";
import { CliError, Exit, usage } from "./exit.js";
import { print, typed } from "./output.js";
import { diesWithParent } from "./run/child.js";
import { STORIES } from "./stories/index.js";
import { Stage, type Story, type Theatre } from "./stories/stage.js";
import { suggest } from "./suggest.js";

/** Plays a story; without a name, lists them. */
export async function story(name: string | undefined): Promise<number> {
  if (name === undefined) {
    const width = Math.max(...STORIES.map((one) => one.name.length));
    for (const one of STORIES) print(`${one.name.padEnd(width)}  ${one.title}`);
    return Exit.ok;
  }
  const found = STORIES.find((one) => one.name === name);
  if (found === undefined) {
    const names = STORIES.map((one) => one.name);
    throw usage(
      `there is no story ${typed(name)}${suggest(name, names) || "; holdfast story lists them"}`,
    );
  }
  if (process.platform === "win32") {
    throw new CliError(Exit.failed, "stories stop processes with SIGSTOP, which Windows lacks");
  }
  const lacking = found.needs === undefined ? null : missing([found.needs]);
  if (lacking !== null) {
    throw new CliError(Exit.unavailable, `this story starts servers: ${lacking.advice}`);
  }
  return play(found);
}

async function play(found: Story): Promise<number> {
  const theatre: Theatre = {
    folder: mkdtempSync(join(tmpdir(), "holdfast-story-")),
    launcher: diesWithParent(),
    players: [],
  };
  process.once("exit", () => clear(theatre));
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.once(signal, () => process.exit(Exit.signal + constants.signals[signal]));
  }
  print(found.title);
  const failure = new Stage(found, theatre, false);
  await failure.play();
  const fix = new Stage(found, theatre, true);
  await fix.play();
  print(`\n${found.lesson}\nMore: docs/${found.link}`);
  if (failure.isGood === false && fix.isGood === true) return Exit.ok;
  const expected = `docs/stories.md#${found.name} shows how it should end`;
  throw new CliError(
    Exit.failed,
    `the story ended in another way than usual: ${expected}; play it again, and report it if that does not help`,
  );
}

function clear({ folder, players }: Theatre): void {
  // KILL ends a stopped process too.
  for (const player of players) player.signal("SIGKILL");
  rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
}
