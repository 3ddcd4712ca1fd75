export interface Option {
  /** What stands for its value in the help. Without one it is a flag. */
  readonly value?: string;
  /** For the help; only `help` and `version` have one. */
  readonly short?: string;
  readonly about: string;
}

export const OPTIONS = {
  store: {
    value: "URL",
    about:
      "where the locks are, such as sqlite:/srv/locks.db\n(default: HOLDFAST_STORE, or a file of this user)",
  },
  "store-file": {
    value: "PATH",
    about:
      "a file that holds the URL of the store, for one\nwith a password (default: HOLDFAST_STORE_FILE)",
  },
  namespace: { value: "NAME", about: "keeps apart users of one store (default: default)" },
  ttl: { value: "TIME", about: "how long the lease lasts without renewal\n(default: 30s)" },
  wait: {
    value: "TIME",
    about: "how long to wait for a busy name, or forever\n(default: 0, ask once)",
  },
  shared: { about: "hold it together with other --shared runs" },
  "once-per": { value: "TIME", about: "run at most once in this time, on any machine" },
  "at-most": { value: "N", about: "let N hold it at the same time, instead of one" },
  "at-least": { value: "TIME", about: "keep it closed that long, even if CMD ends earlier" },
  "max-hold": { value: "TIME", about: "stop CMD after this time" },
  note: { value: "TEXT", about: "shown beside the holder" },
  "if-unavailable": {
    value: "fail|run",
    about: "when the store can't be used (default: fail)",
  },
  quiet: { about: "say nothing when the name is held (exit code 75)" },
  verbose: { about: "say which store is used, and when the lease\nbegins and ends" },
  prefix: { value: "TEXT", about: "only names that start with it" },
  json: { about: "for programs; tokens are strings" },
  force: { about: "yes, although the holder may still be at work" },
  why: { value: "TEXT", about: "told to the holder, and shown by inspect" },
  runs: { value: "N", about: "how many seeds to try (default: 1000)" },
  seed: { value: "N", about: "the first seed; alone, one run of it\n(default: another each time)" },
  mutant: { value: "NAME", about: "break the code in a known way, or list the ways" },
  picture: { value: "FILE", about: "draw who held what in a broken run, as SVG" },
  lab: {
    value: "NAME",
    about: "start servers for it, instead of using a store of\nyours: --list shows the names",
  },
  for: {
    value: "TIME",
    about: "begin no run after this time (default: 60s); a run\ntakes 10 to 25 s",
  },
  workers: { value: "N", about: "how many processes contend (default: 4; 3 on a store\nof yours)" },
  faults: {
    value: "LIST",
    about:
      "only these, separated by commas, by name or by what\nthey hit (worker, connection, server, cluster, files);\nnone for none, list to see them",
  },
  pick: {
    value: "LIST",
    about: "of the run that the seed draws, only these workers,\nfaults and time: w1,w2,f3,t4200",
  },
  report: { value: "FILE", about: "write the report as one HTML page" },
  list: { about: "show the labs" },
  help: { short: "h", about: "show this help" },
  version: { short: "v", about: "show the version" },
} as const satisfies Record<string, Option>;

type Table = typeof OPTIONS;
export type OptionName = keyof Table;

/** Options as they were given: text, or true for a flag. */
export type Options = {
  readonly [Name in OptionName]?: Table[Name] extends { value: string } ? string : true;
};

/** The names of the options whose value the help calls so. */
export type OptionsOf<Value extends string> = {
  [Name in OptionName]: Table[Name] extends { value: Value } ? Name : never;
}[OptionName];

export interface CommandLine {
  readonly args: readonly string[];
  readonly options: Options;
  /** What follows `--`, untouched, for a command that runs another. */
  readonly child: readonly string[];
}

export interface Command {
  readonly name: string;
  readonly summary: string;
  /** All are needed. */
  readonly args: readonly string[];
  /** How the line goes on after them. */
  readonly usage: string;
  readonly takesChild?: true;
  /** `help` is understood by all. */
  readonly options: readonly OptionName[];
  /** What options mean here, where that is not what they mean elsewhere. */
  readonly abouts?: { readonly [Name in OptionName]?: string };
  readonly examples: readonly string[];
  /** The end of the help. */
  readonly more?: string;
  /** Loads the command's code only now. */
  readonly run: (line: CommandLine) => Promise<number>;
}

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
      "store",
      "store-file",
      "namespace",
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
    options: [
      "wait",
      "ttl",
      "max-hold",
      "note",
      "quiet",
      "verbose",
      "store",
      "store-file",
      "namespace",
    ],
    abouts: {
      wait: "how long to wait for being elected\n(default: forever)",
      "max-hold":
        "end the term after this time: CMD is stopped, and\nthe next candidate is elected",
      quiet: "do not say who leads, or that it is elected",
    },
    examples: [
      "holdfast elect scheduler -- ./scheduler",
      "holdfast elect writer --ttl 10s --max-hold 24h -- ./writer",
    ],
    more: `It waits until it is elected, and runs CMD. When leadership is lost, CMD is
stopped within what remains of the lease, and it campaigns again. When CMD ends
by itself, leadership is given up, and elect ends with CMD's exit code.

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
    summary: "List the names in use, their holders and how many wait",
    args: [],
    usage: "[options]",
    options: ["prefix", "json", "store", "store-file", "namespace"],
    examples: ["holdfast ls --prefix order:", "holdfast ls --json | jq -r '.[].name'"],
    run: async ({ options }) => (await import("./ls.js")).ls(options),
  },
  {
    name: "inspect",
    summary: "Show who holds a name and who waits for it",
    args: ["NAME"],
    usage: "[options]",
    options: ["json", "store", "store-file", "namespace"],
    examples: ["holdfast inspect nightly-backup"],
    run: async ({ args: [name], options }) =>
      (await import("./inspect.js")).inspect(name!, options),
  },
  {
    name: "release",
    summary: "Take a name from its holder by force",
    args: ["NAME"],
    usage: "--force [options]",
    options: ["force", "why", "store", "store-file", "namespace"],
    examples: ["holdfast release nightly-backup --force --why 'host was switched off'"],
    run: async ({ args: [name], options }) =>
      (await import("./release.js")).release(name!, options),
  },
  {
    name: "deadlocks",
    summary: "Find those who wait for each other in a circle",
    args: [],
    usage: "[options]",
    options: ["json", "store", "store-file", "namespace"],
    abouts: { json: "for programs" },
    examples: ["holdfast deadlocks", "holdfast deadlocks --json | jq -r '.[][].holder'"],
    more: `It goes by the labels of holders: one label is taken for one who can do one
thing at a time. Exit code 1: there is a deadlock. 0: there is none.`,
    run: async ({ options }) => (await import("./deadlocks.js")).deadlocks(options),
  },
  {
    name: "doctor",
    summary: "Report what endangers locks on a store",
    args: [],
    usage: "[options]",
    options: ["json", "store", "store-file"],
    abouts: { json: "for programs" },
    examples: [
      "holdfast doctor --store redis://cache:6379",
      "holdfast doctor --json | jq -r '.findings[] | select(.level == \"danger\")'",
    ],
    more: `Each finding says what can go wrong, and what helps. What this user may not look
at is unknown, never guessed. It locks a name of its own for a moment, to try it
out; nothing else is changed.

Exit codes:
  0   no danger was found      64  wrong usage
  1   there is a danger        69  the store can't be reached`,
    run: async ({ options }) => (await import("./doctor.js")).doctor(options),
  },
  {
    name: "simulate",
    summary: "Search for a broken promise in simulated clusters",
    args: [],
    usage: "[options]",
    options: ["runs", "seed", "mutant", "picture", "json"],
    examples: [
      "holdfast simulate --runs 10000",
      "holdfast simulate --seed 26 --mutant 'obeys a renewal that was overtaken'",
      "holdfast simulate --mutant list",
    ],
    more: `The library's own code runs on several simulated processes over one simulated
store: messages are lost, late, doubled and overtake each other, processes are
paused, suspended and killed, clocks jump. The same seed is the same run. A run
that breaks a promise is shortened and shown; exit code 1.`,
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
      "pick",
      "report",
      "json",
      "list",
      "store",
      "store-file",
    ],
    abouts: {
      runs: "at most this many runs; without --for, no limit of time",
      seed: "the seed of the first run; each later run takes the\nnext (default: another each time)",
      json: "print the result as JSON",
      store: "a store of yours: only faults of its own processes and\nconnections are made there",
    },
    examples: [
      "holdfast verify --lab redis --report redis.html",
      "holdfast verify --store redis://127.0.0.1:6379 --for 60s",
      "holdfast verify --lab etcd-cluster --faults leader\\ killed,worker",
    ],
    more: `Worker processes contend for a few names in all modes while faults strike them,
their connections and the servers; then what they saw is checked. A run that
breaks a promise is repeated with less and less of it, and told in a few lines.

Exit codes:
  0   every promise that was   1   a promise was broken
      put to the test held     2   too little was seen to say
                               64  wrong usage
                               69  the store can't be reached`,
    run: async ({ options }) => (await import("./verify.js")).verifyStore(options),
  },
  {
    name: "demo",
    summary: "See a paused holder lose its lease, fenced and not fenced",
    args: [],
    usage: "",
    options: [],
    examples: ["holdfast demo"],
    run: async () => (await import("./demo.js")).demo(),
  },
];
