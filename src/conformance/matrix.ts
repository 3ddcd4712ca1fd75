import assert from "node:assert/strict";
import { contextOf } from "../core/context.js";
import { UnsupportedError } from "../core/errors.js";
import type { Feature, Traits } from "../core/store.js";
import { NamespaceRecords } from "../lockfree/records.js";
import type { Locks } from "../locks.js";
import type { Case } from "./subject.js";

/** A feature of Holdfast. A store that lacks what it needs refuses it with the reason. */
interface Primitive {
  readonly name: string;
  readonly call: string;
  readonly needs?: Feature;
  use(locks: Locks): Promise<unknown>;
}

const PRIMITIVES: readonly Primitive[] = [
  {
    name: "lock",
    call: "acquire(name)",
    use: async (locks) => (await locks.acquire("name")).release(),
  },
  {
    name: "readers-writer lock",
    call: 'acquire(name, { mode: "shared" })',
    needs: "shared",
    use: async (locks) => (await locks.acquire("name", { mode: "shared" })).release(),
  },
  {
    name: "semaphore",
    call: "semaphore(name, { permits })",
    needs: "permits",
    use: async (locks) => (await locks.semaphore("name", { permits: 3 }).acquire()).release(),
  },
  {
    name: "multi-lock",
    call: "acquireAll(names)",
    use: async (locks) => (await locks.acquireAll(["a", "b"])).release(),
  },
  {
    name: "election",
    call: "election(name)",
    use: async (locks) => {
      const election = locks.election("name");
      await election.campaign();
      await election.resign();
    },
  },
  {
    name: "once per period",
    call: "once(name, { every }, fn)",
    needs: "at-least",
    use: (locks) => locks.once("name", { every: 50 }, () => {}),
  },
  {
    name: "closed for a while",
    call: "acquire(name, { atLeast })",
    needs: "at-least",
    use: async (locks) => (await locks.acquire("name", { atLeast: 50 })).release(),
  },
  {
    name: "a ttl of its own",
    call: "acquire(name, { ttl })",
    needs: "own-ttl",
    use: async (locks) => (await locks.acquire("name", { ttl: "77s" })).release(),
  },
  {
    name: "forced release",
    call: "forceRelease(name, { why })",
    needs: "revoke",
    use: (locks) => locks.forceRelease("name", { why: "a test" }),
  },
  {
    name: "records and meters",
    call: "holdfast/lockfree",
    needs: "records",
    use: async (locks) => new NamespaceRecords(contextOf(locks), "this case").read("name"),
  },
];

/** The matrix as Markdown: a row for each primitive, a column for each store. */
export function matrixOf(stores: readonly Traits[]): string {
  const row = (cells: readonly string[]): string => `| ${cells.join(" | ")} |`;
  return [
    row(["", "call", ...stores.map(({ store }) => store)]),
    row(["---", "---", ...stores.map(() => "---")]),
    ...PRIMITIVES.map((one) =>
      row([one.name, `\`${one.call}\``, ...stores.map((traits) => offer(one, traits))]),
    ),
    row(["can grant twice", "", ...stores.map(({ grantsTwiceAfter }) => twice(grantsTwiceAfter))]),
  ].join("\n");
}

function offer({ name, needs }: Primitive, { cannot, waiting, fair }: Traits): string {
  const refused = needs === undefined ? undefined : cannot[needs];
  if (refused !== undefined) return `refused: ${refused}`;
  if (name === "lock") return `yes; waiting is ${waiting}${fair ? " and in order" : ""}`;
  if (name !== "multi-lock") return "yes";
  return cannot["many-names"] === undefined ? "yes, in one step if free" : "yes, one by one";
}

const twice = (faults: readonly string[]): string =>
  faults.length === 0 ? "no" : `after ${faults.join("; ")}`;

export const matrixCases: readonly Case[] = PRIMITIVES.map(({ name, needs, use }) => ({
  name: `${name}: there, or refused with the reason`,
  async run(bench) {
    const locks = await bench.locks();
    const reason = needs === undefined ? undefined : locks.traits.cannot[needs];
    if (reason === undefined) await bench.settled(use(locks));
    else {
      await assert.rejects(
        async () => use(locks),
        (error) => error instanceof UnsupportedError && error.message.includes(reason),
      );
    }
  },
}));
