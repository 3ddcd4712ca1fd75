import { STORE_KINDS } from "../stores/registry.js";
import type { Command } from "./command.js";
import { STORE_OPTIONS } from "./options.js";

/** The schemes of the stores that `setup` makes tables for. */
const WITH_TABLES = STORE_KINDS.filter(({ setup }) => setup !== undefined)
  .map(({ schemes }) => `${schemes[0]}:`)
  .join(", ");

/** Each command loads its code when it runs. */
export const COMMANDS: readonly Command[] = [
  {
    name: "run",
    summary: "Run a command while holding a name",
    args: ["NAME"],
    usage: "[options] -- CMD [ARG…]",
    takesChild: true,
    options: [
      "wait",
      "ttl",
      "once-per",
      "at-most",
      "shared",
      "at-least",
      "max-hold",
      "note",
      "if-unavailable",
      "quiet",
      "verbose",
      ...STORE_OPTIONS,
    ],
    examples: [
      "holdfast run nightly-backup -- ./backup.sh --full",
      'holdfast run deploy --wait 10m --note "$USER" -- make deploy',
      "holdfast run report --once-per 24h --max-hold 2h -- ./report",
      "holdfast run gpu --at-most 4 --wait forever -- ./train",
    ],
    more: `A TIME has a unit: 250ms, 30s, 5m, 1h.

Exit codes:
  CMD's own, or 128+n if signal n ended it
  64  wrong usage              75  not acquired: the name is held, or its
  69  store unavailable            period is used up
  74  lease lost, CMD stopped  126 CMD is not executable  127 CMD not found`,
    run: async ({ args: [name], options, child }) =>
      (await import("./run.js")).run(name!, options, child),
  },
  {
    name: "elect",
    summary: "Run a command while leader; stand by until elected",
    args: ["NAME"],
    usage: "[options] -- CMD [ARG…]",
    takesChild: true,
    options: ["wait", "ttl", "max-hold", "note", "quiet", "verbose", ...STORE_OPTIONS],
    abouts: {
      wait: "how long to wait to be elected\n(default: forever)",
      "max-hold":
        "end the term after this time: CMD is stopped, and\nthe next candidate is elected",
      quiet: "print nothing about the leader and the election",
    },
    examples: [
      "holdfast elect scheduler -- ./scheduler",
      "holdfast elect writer --ttl 10s --max-hold 24h -- ./writer",
    ],
    more: `elect waits until it is elected, and runs CMD. When leadership is lost, it stops
CMD before the lease expires, and campaigns again. When CMD ends by itself,
elect resigns, and ends with CMD's exit code.

Exit codes:
  CMD's own, or 128+n if signal n ended it, or the wait
  64  wrong usage              75  not elected within --wait
  69  store unavailable        126 CMD is not executable
  74  the lease was lost       127 CMD not found
      before CMD's end`,
    run: async ({ args: [name], options, child }) =>
      (await import("./elect.js")).elect(name!, options, child),
  },
  {
    name: "ls",
    summary: "List the names in use, with holders and waiters",
    args: [],
    usage: "[options]",
    options: ["prefix", "watch", "json", ...STORE_OPTIONS],
    examples: [
      "holdfast ls --prefix order:",
      "holdfast ls --watch",
      "holdfast ls --json | jq -r '.[].name'",
    ],
    run: async ({ options }) => (await import("./ls.js")).ls(options),
  },
  {
    name: "events",
    summary: "Print changes of holders and waiters as they are seen",
    args: [],
    usage: "[options]",
    options: ["prefix", "json", ...STORE_OPTIONS],
    abouts: { json: "print a line of JSON for each; tokens are strings" },
    examples: [
      "holdfast events --prefix order:",
      "holdfast events --json | jq -r 'select(.event == \"granted\") | .name'",
    ],
    more: `It lists the names every half second, and prints the differences until you end
it: held (at the start), granted, ended, waiters. A lease that begins and ends
between two looks is not seen.`,
    run: async ({ options }) => (await import("./events.js")).events(options),
  },
  {
    name: "inspect",
    summary: "Show the holders and waiters of a name",
    args: ["NAME"],
    usage: "[options]",
    options: ["json", ...STORE_OPTIONS],
    examples: ["holdfast inspect nightly-backup"],
    run: async ({ args: [name], options }) =>
      (await import("./inspect.js")).inspect(name!, options),
  },
  {
    name: "release",
    summary: "Take a name from its holder by force",
    args: ["NAME"],
    usage: "--force [options]",
    options: ["force", "why", ...STORE_OPTIONS],
    examples: ["holdfast release nightly-backup --force --why 'host was switched off'"],
    run: async ({ args: [name], options }) =>
      (await import("./release.js")).release(name!, options),
  },
  {
    name: "deadlocks",
    summary: "Find holders that wait for each other in a circle",
    args: [],
    usage: "[options]",
    options: ["json", ...STORE_OPTIONS],
    abouts: { json: "print JSON" },
    examples: ["holdfast deadlocks", "holdfast deadlocks --json | jq -r '.[][].holder'"],
    more: `Holders are identified by their labels: each label counts as a process that does
one thing at a time. Exit code 1: there is a deadlock. 0: there is none.`,
    run: async ({ options }) => (await import("./deadlocks.js")).deadlocks(options),
  },
  {
    name: "doctor",
    summary: "Report what endangers locks on a store",
    args: [],
    usage: "[options]",
    options: ["json", "store", "store-file"],
    abouts: { json: "print JSON" },
    examples: [
      "holdfast doctor --store redis://cache:6379",
      "holdfast doctor --json | jq -r '.findings[] | select(.level == \"danger\")'",
    ],
    more: `Each finding says what can go wrong, and what helps. A check that this user has
no right to make is reported as unknown. The doctor locks a name of its own for
a moment, as a trial; it changes nothing else.

Exit codes:
  0   no danger was found      64  wrong usage
  1   there is a danger        69  the store can't be reached`,
    run: async ({ options }) => (await import("./doctor.js")).doctor(options),
  },
  {
    name: "fences",
    summary: "List the resources that are fenced in a database",
    args: [],
    usage: "--store URL [options]",
    options: ["prefix", "json", "store", "store-file"],
    abouts: {
      prefix: "only resources that start with TEXT",
      store: "the database with the fenced data, which need not be\nthe store of the locks",
    },
    examples: [
      "holdfast fences --store postgres://db/shop",
      "holdfast fences --store sqlite:shop.db --prefix stock: --json",
    ],
    more: `For each resource: the highest token that has entered, and when, where the
database can tell. A holder with a lower token is refused. It looks where a
fence keeps its numbers by default, and changes nothing. The fence of a folder
keeps them in sqlite:FOLDER/.holdfast-fence.db.`,
    run: async ({ options }) => (await import("./fences.js")).fences(options),
  },
  {
    name: "setup",
    summary: "Make the tables of a store before its first use",
    args: [],
    usage: "--store URL [options]",
    options: ["print", "grant", "store", "store-file"],
    examples: [
      "holdfast setup --store postgres://owner@db/app --grant app",
      "holdfast setup --store postgres://db/app --print | psql -U owner app",
    ],
    more: `Only a store in a database needs it (${WITH_TABLES}), and only if the
user of your application may not create a schema: otherwise the first lock makes
the tables. It changes nothing that is there already.

Exit codes:
  0   the tables are there     64  wrong usage, or no such USER
                               69  the store can't be reached, or refuses`,
    run: async ({ options }) => (await import("./setup.js")).setup(options),
  },
  {
    name: "simulate",
    summary: "Search for a broken promise in simulated clusters",
    args: [],
    usage: "[options]",
    options: ["quorum", "runs", "seed", "mutant", "picture", "json"],
    examples: [
      "holdfast simulate --runs 10000",
      "holdfast simulate --quorum --runs 10000",
      "holdfast simulate --seed 26 --mutant 'obeys a renewal that was overtaken'",
      "holdfast simulate --mutant list",
    ],
    more: `The library's own code runs on several simulated processes over one simulated
store: messages are lost, late, doubled and overtake each other, processes are
paused, suspended and killed, clocks jump. With --quorum, nodes also stop,
restart with and without their data, and forget records. The same seed is the
same run. A run that breaks a promise is shortened and shown; exit code 1.`,
    run: async ({ options }) => (await import("./simulate.js")).simulate(options),
  },
  {
    name: "verify",
    summary: "Test a store with real processes and random real faults",
    args: [],
    usage: "--store URL | --lab NAME [options]",
    options: [
      "lab",
      "for",
      "runs",
      "seed",
      "workers",
      "faults",
      "fence",
      "pick",
      "report",
      "json",
      "list",
      "store",
      "store-file",
    ],
    abouts: {
      runs: "at most this many runs; without --for, no limit of time",
      seed: "the seed of the first run; each later run takes the\nnext (default: random)",
      json: "print the result as JSON",
      store: "a store of yours; faults hit only processes and\nconnections of the verifier",
    },
    examples: [
      "holdfast verify --lab redis --report redis.html",
      "holdfast verify --store redis://127.0.0.1:6379 --for 60s",
      "holdfast verify --lab etcd-cluster --faults leader\\ killed,worker",
    ],
    more: `Worker processes contend for a few names in all modes while faults strike them,
their connections and the servers; then the history is checked. A run that
breaks a promise is shortened, and shown in a few lines.

Exit codes:
  0   every promise that was   1   a promise was broken
      tested held              2   too little happened for a verdict
                               64  wrong usage
                               69  the store can't be reached`,
    run: async ({ options }) => (await import("./verify.js")).verifyStore(options),
  },
  {
    name: "advise",
    summary: "Say whether your work needs a lock, and which one",
    args: [],
    usage: "[options]",
    options: [
      "double-run",
      "idempotent",
      "writes-to",
      "work",
      "stores",
      "survive",
      "when-down",
      "runtime",
      "network",
      "json",
    ],
    abouts: { json: "print JSON" },
    examples: [
      "holdfast advise",
      "holdfast advise --double-run corruption --writes-to postgres --work 2m",
      "holdfast advise --stores redis,etcd --survive yes --json",
    ],
    more: `On a terminal and without options, it asks the questions one by one. Otherwise
each question without an option has its default, the first answer. It connects
to nothing.`,
    run: async ({ options }) => (await import("./advise.js")).advise(options),
  },
  {
    name: "story",
    summary: "Play an incident with real processes, then its fix",
    args: [],
    optionalArg: "NAME",
    usage: "",
    options: [],
    examples: ["holdfast story", "holdfast story oversold"],
    more: `Without a NAME, it lists the stories. Each one takes a few seconds, and leaves
nothing behind. Some start a Redis server of their own.`,
    run: async ({ args: [name] }) => (await import("./story.js")).story(name),
  },
  {
    name: "demo",
    summary: "See a paused holder lose its lease, fenced and unfenced",
    args: [],
    usage: "",
    options: [],
    examples: ["holdfast demo"],
    run: async () => (await import("./demo.js")).demo(),
  },
];
