import type { CAC } from "cac";
import type { Options } from "./arguments.js";

const STORE =
  "where the locks are: sqlite:PATH, … (default: HOLDFAST_STORE, or a file of this user)";
const NAMESPACE = "keeps apart users of one store (default: default)";

const EXIT_CODES = `  CMD's own, or 128+n if signal n ended it
  64  wrong usage              75  not acquired: the name is held
  69  store unavailable        126 CMD is not executable
  74  lease lost, CMD stopped  127 CMD not found`;

/** The commands and their help. Each loads its code only when it runs. */
export function define(cli: CAC): void {
  cli
    .command("run <name>", "Run a command while holding a name")
    .usage("run NAME [options] -- CMD [ARG…]")
    .option("--store <url>", STORE)
    .option("--ttl <time>", "how long the lease lasts without renewal (default: 30s)")
    .option("--wait <time>", "how long to wait for a busy name, or forever (default: 0, ask once)")
    .option("--shared", "hold it together with others who say so")
    .option("--at-least <time>", "keep the name closed that long, even if CMD ends earlier")
    .option("--max-hold <time>", "stop CMD after this time")
    .option("--note <text>", "shown beside the holder")
    .option("--namespace <name>", NAMESPACE)
    .option("--if-unavailable <what>", "when the store can't be used: fail or run (default: fail)")
    .option("--quiet", "say nothing when the name is held; the exit code tells")
    .option("--verbose", "say which store is used, and when the lease begins and ends")
    .example("  $ holdfast run nightly-backup -- ./backup.sh --full")
    .example('  $ holdfast run deploy --wait 10m --note "$USER" -- make deploy')
    .example("  $ holdfast run report --at-least 50m --max-hold 2h -- ./report")
    .example(`\nExit codes:\n${EXIT_CODES}`)
    .action(async (name: string, options: Options) =>
      (await import("./run.js")).run(name, options),
    );

  cli
    .command("ls", "List the names in use, their holders and how many wait")
    .option("--store <url>", STORE)
    .option("--prefix <text>", "only names that start with it")
    .option("--namespace <name>", NAMESPACE)
    .option("--json", "for programs; tokens are strings")
    .example("  $ holdfast ls --prefix order:")
    .example("  $ holdfast ls --json | jq -r '.[].name'")
    .action(async (options: Options) => (await import("./ls.js")).ls(options));

  cli
    .command("inspect <name>", "Show who holds a name and who waits for it")
    .usage("inspect NAME [options]")
    .option("--store <url>", STORE)
    .option("--namespace <name>", NAMESPACE)
    .option("--json", "for programs; tokens are strings")
    .example("  $ holdfast inspect nightly-backup")
    .action(async (name: string, options: Options) =>
      (await import("./inspect.js")).inspect(name, options),
    );

  cli
    .command("release <name>", "Take a name from its holder by force")
    .usage("release NAME --force [options]")
    .option("--force", "yes, although the holder may still be at work")
    .option("--why <text>", "told in the store (default: holdfast release by USER)")
    .option("--store <url>", STORE)
    .option("--namespace <name>", NAMESPACE)
    .example("  $ holdfast release nightly-backup --force --why 'host was switched off'")
    .action(async (name: string, options: Options) =>
      (await import("./release.js")).release(name, options),
    );

  cli
    .command("demo", "Watch a paused holder lose its lease, with and without a fence")
    .example("  $ holdfast demo")
    .action(async () => (await import("./demo.js")).demo());

  cli
    .usage("<command> [options]")
    .example("  $ holdfast run nightly-backup -- ./backup.sh")
    .example("  $ holdfast run deploy --wait 10m -- make deploy")
    .example("  $ holdfast ls")
    .example("  $ holdfast demo");
}
