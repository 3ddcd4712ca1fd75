import { mkdtempSync, rmSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import { type Outcome, playAct, type Stage } from "./demo/act.js";
import { CliError, Exit } from "./exit.js";
import { print, style } from "./output.js";
import { diesWithParent } from "./run/child.js";

const TTL_MS = 2_000;

/** A paused holder that loses its lease: with a fence its late write is refused, without one it does harm. */
export async function demo(): Promise<number> {
  if (process.platform === "win32") {
    throw new CliError(Exit.failed, "the demo stops a process with SIGSTOP, which Windows lacks");
  }
  const stage: Stage = {
    folder: mkdtempSync(join(tmpdir(), "holdfast-demo-")),
    ttlMs: TTL_MS,
    launcher: diesWithParent(),
    workers: [],
  };
  process.once("exit", () => clear(stage));
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.once(signal, () => process.exit(Exit.signal + constants.signals[signal]));
  }

  print("Two processes, A and B, each add 1 to a counter in an SQLite file: read, then write.");
  print("A lock keeps them apart. But A is paused in between, for longer than its lease.");
  heading("1. With a fence: the file refuses a token lower than the highest that it has seen");
  const fenced = await playAct(stage, true);
  const fencedRight = verdict(fenced);
  heading("2. The same without the fence: the file takes every write");
  const bare = await playAct(stage, false);
  const bareRight = verdict(bare);

  const shown = fencedRight && !bareRight && fenced.tokensRise && bare.tokensRise;
  print(
    shown
      ? "\nNo lock with a lease can prevent the pause. The token makes it harmless, where it is checked."
      : "\nThis is not what the demo should show: the fenced counter must be right and the other one wrong.",
  );
  return shown ? Exit.ok : Exit.failed;
}

function heading(text: string): void {
  print(`\n${style(process.stdout, "bold", text)}`);
}

/** The counter is right if it equals the number of acknowledged writes. */
function verdict({ counter, acknowledged }: Outcome): boolean {
  const right = counter === acknowledged;
  const sum = `Counter: ${counter}, writes acknowledged: ${acknowledged}.`;
  const word = right
    ? style(process.stdout, "green", "The counter is right.")
    : style(process.stdout, "red", "The counter is wrong: an update is lost.");
  print(`${sum} ${word}`);
  return right;
}

function clear(stage: Stage): void {
  // KILL ends a stopped process too.
  for (const worker of stage.workers) worker.signal("SIGKILL");
  rmSync(stage.folder, { recursive: true, force: true, maxRetries: 3 });
}
