import { join } from "node:path";
import { afterEach, describe, expect, it } from "vitest";
import { connect } from "../../src/connect.js";
import type { AcquireOptions, LocksOptions } from "../../src/core/options.js";
import type { Locks } from "../../src/locks.js";
import { holdfast, makeFolder, until } from "./helpers.js";

const opened: Locks[] = [];

afterEach(async () => {
  await Promise.all(opened.splice(0).map((locks) => locks.close()));
});

/** Locks with another label, as another process would have. */
async function party(folder: string, holder: string, more: LocksOptions = {}): Promise<Locks> {
  const locks = await connect(`sqlite:${join(folder, "locks.db")}`, { holder, ...more });
  opened.push(locks);
  return locks;
}

/** Waits for the name, and resolves when the ticket can be seen. */
async function wait(locks: Locks, name: string, options: AcquireOptions = {}): Promise<void> {
  const waiters = async (): Promise<number> => (await locks.inspect(name))?.waiters.length ?? 0;
  const before = await waiters();
  locks.acquire(name, { ...options, wait: Number.POSITIVE_INFINITY }).catch(() => {});
  await until(`it waits for ${name}`, async () => (await waiters()) > before);
}

describe("holdfast deadlocks", () => {
  it("says that there is none, though names are held and waited for", async () => {
    const folder = makeFolder();
    const [a, b] = [await party(folder, "host-a:12"), await party(folder, "host-b:7")];
    await a.acquire("x");
    await b.acquire("y");
    await wait(a, "y");
    expect(await holdfast(folder, ["deadlocks"])).toEqual({
      code: 0,
      stdout: 'No deadlock in namespace "default".\n',
      stderr: "",
    });
    expect((await holdfast(folder, ["deadlocks", "--json"])).stdout).toBe("[]\n");
  });

  it("describes each circle in words, with how to resolve it, and exits with 1", async () => {
    const folder = makeFolder();
    const [a, b] = [await party(folder, "host-a:12"), await party(folder, "host-b:7")];
    await a.acquire("x");
    const held = await b.acquire("y");
    await wait(a, "y");
    await wait(b, "x");
    const { code, stdout, stderr } = await holdfast(folder, ["deadlocks"]);
    expect(stdout.replace(/\(for \S+\)/g, "(for 3s)")).toBe(
      [
        "Deadlock: 2 holders wait for each other in a circle, and none of them can go on.",
        '  host-a:12 holds "x" and waits for "y" (for 3s), which host-b:7 holds;',
        '  host-b:7 holds "y" and waits for "x" (for 3s), which host-a:12 holds.',
        "End one of them. Or take a name from its holder by force, though it may still be at work:",
        "  holdfast release y --force",
        "",
      ].join("\n"),
    );
    expect(stderr).toBe("");
    expect(code).toBe(1);

    const json = await holdfast(folder, ["deadlocks", "--json"]);
    expect(json.code).toBe(1);
    const waitingMs = expect.any(Number);
    expect(JSON.parse(json.stdout)).toEqual([
      [
        { holder: "host-a:12", holds: ["x"], waitsFor: "y", waitingMs, blockedBy: "host-b:7" },
        { holder: "host-b:7", holds: ["y"], waitsFor: "x", waitingMs, blockedBy: "host-a:12" },
      ],
    ]);

    expect((await holdfast(folder, ["release", "y", "--force"])).code).toBe(0);
    expect((await holdfast(folder, ["deadlocks"])).code).toBe(0);
    expect(await held.release()).toBe("lost");
  });

  it("names the waiter in front, quotes for the shell, and works in a namespace", async () => {
    const folder = makeFolder();
    const of = (holder: string): Promise<Locks> => party(folder, holder, { namespace: "shop" });
    const [a, b, w] = [await of("a:1"), await of("b:2"), await of("w:3")];
    const [x, y] = ["x", "-it's"];
    await a.acquire(x, { mode: "shared" });
    await b.acquire(y);
    await wait(a, y);
    // A writer that holds nothing stands between two readers.
    await wait(w, x);
    await wait(b, x, { mode: "shared" });
    expect((await holdfast(folder, ["deadlocks"])).code).toBe(0);
    const { code, stdout } = await holdfast(folder, ["deadlocks", "--namespace", "shop"]);
    expect(code).toBe(1);
    expect(stdout).toMatch(
      /\n {2}b:2 holds "-it's" and waits for "x" \(for \S+\), for which w:3 waits in front[;.]\n/,
    );
    expect(stdout).toMatch(/\n {2}w:3 waits for "x" \(for \S+\), which a:1 holds[;.]\n/);
    const ways = stdout.split("\n").filter((line) => line.startsWith("  holdfast release"));
    expect(ways).toEqual(["  holdfast release --force --namespace shop -- '-it'\\''s'"]);
  });
});
