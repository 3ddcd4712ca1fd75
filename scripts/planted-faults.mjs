/**
 * Faults that real stores had, or could have: each is brought back by a change to a copy of the built
 * code, or by a mutant of the core, and the verifier has to find it.
 *
 *   node scripts/planted-faults.mjs              measures all, and prints the table of docs/verify.md
 *   node scripts/planted-faults.mjs "hard link"  measures those whose names contain the text
 *   node scripts/planted-faults.mjs --until-found "hard link"
 *                                                ends with the first trial that finds it, and fails if none does
 */
import {
  chmodSync,
  cpSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..");

/**
 * `edits`: a file of the built code, the text that is replaced, and its replacement. `isSearched`: the real
 * stores had this fault, and finding it takes minutes, so `npm run test:long` searches for it.
 */
export const PLANTED = [
  {
    name: "handover past a waiter that the call answers",
    isSearched: true,
    lab: "redis",
    faults: "worker killed,worker paused,subscription cut,subscription half open",
    edits: [
      ["stores/redis/lua.js", "and channel ~= callerChannel then", "then"],
      ["stores/redis/lua.js", "isHeld and not claim.isInReply and", "isHeld and"],
    ],
  },
  {
    name: "refused re-SUBSCRIBE is swallowed",
    isSearched: true,
    lab: "redis",
    faults: "right to subscribe taken,subscription cut",
    edits: [
      [
        "stores/redis/ioredis.js",
        ".then(() => events.resubscribed?.(), giveUp)",
        ".then(() => events.resubscribed?.(), () => {})",
      ],
    ],
  },
  {
    name: "database that can't be selected is ignored",
    lab: "redis",
    faults: "right to select taken",
    edits: [["stores/redis/lua.js", "redis.call('SELECT', DATABASE)", ""]],
  },
  {
    name: "release without comparing the owner",
    lab: "redis",
    edits: [
      [
        "stores/redis/lua.js",
        "local holder = state.byId[id]\n  if holder and holder.ended == 'no' then return",
        "local holder = state.byId[id] or state.holders[1]\n  if holder and holder.ended == 'no' then return",
      ],
    ],
  },
  {
    name: "repeated claim extends only at the client",
    lab: "redis",
    edits: [
      ["stores/redis/lua.js", "moveEnd(state, claim, now + ttl)\n", "state.changed = true\n"],
    ],
  },
  {
    name: "two of five nodes are enough",
    lab: "redlock",
    edits: [["stores/quorum/ballot.js", "Math.floor(nodes / 2) + 1", "Math.floor(nodes / 2)"]],
  },
  {
    name: "node that has lost its data votes at once",
    lab: "redlock",
    faults: "a node loses its data,a node is restarted empty,commands cut,connection cut",
    edits: [
      [
        "stores/quorum/lua.js",
        "if recoveringFor > 0 then return string.format('recovering",
        "if false then return string.format('recovering",
      ],
    ],
  },
  {
    name: "second connection drops POSIX locks",
    isSearched: true,
    lab: "sqlite",
    faults: "worker killed,log checkpointed by another tool,journal mode changed by another tool",
    edits: [
      [
        "stores/sqlite/file.js",
        "if (existsSync(file))\n        return;",
        'closeSync(openSync(file, "a", 0o600));\n    return;',
      ],
      [
        "stores/sqlite/replacement-check.js",
        "refuseIfReplaced() {",
        "refuseIfReplaced() {\n        return;",
      ],
    ],
  },
  {
    name: "hard link to the file is accepted",
    lab: "sqlite",
    faults: "worker uses a second hard link",
    edits: [["stores/sqlite/unsafe-file.js", "refuseSecondPath(file);\n}", "}"]],
  },
  {
    name: "grants out of turn",
    lab: "sqlite",
    edits: [
      [
        "stores/rule.js",
        "const fits = (state, claim) => state.firstTicket === undefined && ",
        "const fits = (state, claim) => ",
      ],
    ],
  },
  {
    name: "tokens by the clock alone",
    lab: "sqlite",
    edits: [
      [
        "stores/rule.js",
        "return this.claims.drawToken(BigInt(Math.floor(this.clock.wallMs() * 1_000)));",
        "return BigInt(Math.floor(this.clock.wallMs()));",
      ],
    ],
  },
  {
    name: "deadline counted from the reply",
    lab: "redis",
    faults: "commands delayed,commands stalled,connection delayed",
    mutant: "deadline counted from the reply",
  },
  {
    name: "deadline on the wall clock",
    lab: "redis",
    faults: "worker clock jumps",
    mutant: "deadline on the wall clock",
  },
  {
    name: "token not atomic with the grant",
    lab: "redis",
    mutant: "token not atomic with the grant",
  },
  {
    name: "watchdog that never renews",
    lab: "redis",
    edits: [
      [
        "core/requests.js",
        "() => this.#store.renew(renewals)",
        '() => renewals.map(() => ({ kind: "unknown" }))',
      ],
    ],
  },
  {
    name: "release that is never sent",
    lab: "redis",
    edits: [
      [
        "core/requests.js",
        "() => this.#store.release([release])",
        '() => Promise.resolve(["released"])',
      ],
    ],
  },
  {
    name: "revoked grant is not noticed",
    lab: "zookeeper",
    faults: "none",
    edits: [
      ["stores/zookeeper/session-port.js", "await this.#revoked(link);", ""],
      ["stores/zookeeper/session-port.js", "if (keys.length === 0)", "if (keys.length >= 0)"],
    ],
  },
  {
    name: "waiter that gave up is taken for the holder",
    lab: "zookeeper",
    faults: "none",
    edits: [
      ["stores/shared/sessions/waiters.js", "stands && holders.has(claim.grantId)", "stands"],
    ],
  },
  {
    name: "sequence number is the token",
    lab: "zookeeper",
    faults: "none",
    edits: [
      [
        "stores/zookeeper/claim-attempt.js",
        "return { token, queue };",
        "return { token: BigInt(node.slice(-10)) + 1n, queue };",
      ],
    ],
  },
  {
    name: "release deletes the node of another claim",
    lab: "zookeeper",
    edits: [
      [
        "stores/zookeeper/releases.js",
        "new Queue(name, children, resize).get(grantId)",
        "new Queue(name, children, resize).holders()[0]",
      ],
    ],
  },
  {
    name: "node whose reply was lost is not looked for",
    lab: "zookeeper",
    faults: "connection cut,connection reply lost,connection half a message",
    edits: [
      [
        "stores/zookeeper/claim-attempt.js",
        "const found = queue.get(grantId);",
        "const found = undefined;",
      ],
    ],
  },
  {
    name: "grants do not wait for the replica",
    lab: "redis-replica",
    faults: "replica link cut,failover to the replica",
    edits: [["stores/redis/replicas.js", "if (this.required === 0)", "if (this.required >= 0)"]],
  },
  {
    name: "record of a free name is kept",
    lab: "redis",
    faults: "none",
    edits: [
      [
        "stores/redis/lua.js",
        "redis.call('DEL', stateKey)\n        reply",
        "redis.call('SET', stateKey, cmsgpack.pack(FORMAT, false, { limit = 0, holders = {}, first = 1, next = 1, tickets = 0, longest = 0, ends = 0, kept = 0 }), 'PX', 86400000)\n        reply",
      ],
    ],
  },
  {
    name: "all grants have one token",
    lab: "sqlite",
    faults: "none",
    edits: [
      [
        "core/proved-grant.js",
        "this.token = tokenOffset === 0n ? grant.token :",
        "this.token = tokenOffset === 0n ? 7n :",
      ],
    ],
  },
  {
    name: "waiter behind others is taken for the holder",
    lab: "etcd",
    faults: "none",
    edits: [
      ["stores/shared/sessions/waiters.js", "stands && holders.has(claim.grantId)", "stands"],
    ],
  },
  {
    name: "replies of a batch go to the wrong requests",
    lab: "postgres",
    faults: "none",
    edits: [
      [
        "stores/postgres/request-batcher.js",
        "const reply = replies[i] ?? null;",
        "const reply = replies[batch.length - 1 - i] ?? null;",
      ],
    ],
  },
  {
    name: "waiters that are never notified",
    lab: "redis",
    edits: [["stores/redis/index.js", "#receive(text) {", "#receive(text) {\n        return;"]],
  },
];

/** A copy of the built code with the edits; returns the folder and the module of a worker's process. */
export function plant(edits, from = join(ROOT, "dist")) {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-planted-"));
  // Workers of other users load it, too.
  chmodSync(folder, 0o755);
  cpSync(from, join(folder, "dist"), { recursive: true });
  cpSync(join(ROOT, "package.json"), join(folder, "package.json"));
  symlinkSync(join(ROOT, "node_modules"), join(folder, "node_modules"));
  const remove = () => rmSync(folder, { recursive: true, force: true });
  for (const [file, text, replacement] of edits) {
    const path = join(folder, "dist", file);
    const before = readFileSync(path, "utf8");
    if (!before.includes(text)) {
      remove();
      throw new Error(`${file} has no ${JSON.stringify(text)} any more`);
    }
    writeFileSync(
      path,
      before.replaceAll(text, () => replacement),
    );
  }
  return {
    module: join(folder, "dist/verify/traffic/worker-process.js"),
    remove,
  };
}

/** The last column of the table. */
export const commandOf = ({ lab, faults }) =>
  `\`holdfast verify --lab ${lab}${faults === undefined ? "" : ` --faults ${/ /.test(faults) ? `"${faults}"` : faults}`}\``;

const IS_SEARCH = process.argv.includes("--until-found");
const TRIALS = Number(process.env.TRIALS ?? (IS_SEARCH ? 6 : 3));
const LONGEST_MS = 300_000;
const FIRST_SEED = Number(process.env.HOLDFAST_SEED ?? 0);

/** Prints a row of the table; true if the fault was found. */
async function measure({ name, lab, faults, edits = [], mutant }) {
  const { verifyInLab } = await import(join(ROOT, "dist/verify/index.js"));
  const planted = plant(edits);
  const found = [];
  try {
    for (let i = 0; i < TRIALS; i++) {
      const { result } = await verifyInLab(lab, {
        seed: (FIRST_SEED + 1_000 * (i + 1)) % 2 ** 31,
        forMs: LONGEST_MS,
        faults: faults?.split(","),
        module: planted.module,
        mutant,
      });
      const rules = result.checks.filter(({ verdict }) => verdict === "violated");
      found.push({
        ms: rules.length === 0 ? Number.POSITIVE_INFINITY : result.lastedMs,
        rules: rules.map(({ id }) => id),
      });
      if (process.argv.includes("--verbose")) {
        console.error(
          name,
          Math.round(result.lastedMs),
          rules.map(({ id, why }) => `${id}: ${why}`),
        );
      }
      if (IS_SEARCH && rules.length > 0) break;
    }
  } finally {
    planted.remove();
  }
  // The trials before the one that ended a search found nothing.
  const counted = IS_SEARCH ? found.slice(-1) : found;
  const times = counted.map(({ ms }) => ms).sort((a, b) => a - b);
  const rules = [...new Set(found.flatMap((one) => one.rules))].sort().join(", ");
  const median = times[Math.floor(times.length / 2)];
  const of = times.length < 3 ? "" : ", median";
  const time = Number.isFinite(median) ? `${Math.round(median / 1_000)} s${of}` : "not found";
  console.log(`| ${name} | ${lab} | ${rules} | ${time} | ${commandOf({ lab, faults })} |`);
  return Number.isFinite(median);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const wanted = process.argv.slice(2).find((one) => !one.startsWith("--")) ?? "";
  console.log("| planted bug | store | found as | time | command |\n|---|---|---|---|---|");
  for (const one of PLANTED.filter(({ name }) => name.includes(wanted))) {
    if ((await measure(one)) || !IS_SEARCH) continue;
    console.error(`not found in ${TRIALS} trials: ${one.name}`);
    process.exitCode = 1;
  }
}
