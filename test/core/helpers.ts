import { execFile, execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { LocksOptions } from "../../src/core/options.js";
import type { Random } from "../../src/core/random.js";
import { type Runtime, standardSeams } from "../../src/core/runtime.js";
import type {
  Awaitable,
  Claim,
  ClaimAnswer,
  HolderInfo,
  NameInfo,
  Push,
  Release,
  ReleaseAnswer,
  RenewAnswer,
  Renewal,
  Store,
  Traits,
} from "../../src/core/store.js";
import { createLocksOn, type Locks } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";

/** Random numbers that are not: one number, and ids that look like real ones and are easy to search for. */
export function fixedRandom(unit = 0.5, prefix = "gid-SECRET-grant-id"): Random {
  let ids = 0;
  return { grantId: () => `${prefix}-${String(++ids).padStart(8, "0")}`, unit: () => unit };
}

/** A memory store that records requests, and replies as the test says. */
class StageStore implements Store {
  readonly inner: Store;
  traits: Traits;
  readonly clock: VirtualClock;
  readonly claims: { atMs: number; claim: Claim; push: (push: Push) => void }[] = [];
  readonly renewals: { atMs: number; items: readonly Renewal[] }[] = [];
  readonly releases: { atMs: number; items: readonly Release[] }[] = [];
  closedAtMs = Number.NaN;

  /** Replaced by tests; `apply` carries the request out in the memory store, now or when it is called. */
  onClaim: (apply: () => ClaimAnswer, claim: Claim) => Awaitable<ClaimAnswer> = (apply) => apply();
  onRenew: (
    apply: () => readonly RenewAnswer[],
    items: readonly Renewal[],
  ) => Awaitable<readonly RenewAnswer[]> = (apply) => apply();
  onRelease: (
    apply: () => readonly ReleaseAnswer[],
    items: readonly Release[],
  ) => Awaitable<readonly ReleaseAnswer[]> = (apply) => apply();

  onPush: (deliver: () => void) => void = (deliver) => deliver();

  constructor(
    clock: VirtualClock,
    traits: Partial<Traits> = {},
    inner: Store = memoryStore({ clock: clock.forStore() }),
  ) {
    this.clock = clock;
    this.inner = inner;
    this.traits = { ...this.inner.traits, ...traits };
  }

  claim(claim: Claim, push: (push: Push) => void): Awaitable<ClaimAnswer> {
    this.claims.push({ atMs: this.clock.elapsedMs(), claim, push });
    const deliver = (what: Push): void => this.onPush(() => push(what));
    return this.onClaim(() => this.inner.claim(claim, deliver) as ClaimAnswer, claim);
  }

  renew(items: readonly Renewal[]): Awaitable<readonly RenewAnswer[]> {
    this.renewals.push({ atMs: this.clock.elapsedMs(), items });
    return this.onRenew(() => this.inner.renew(items) as readonly RenewAnswer[], items);
  }

  release(items: readonly Release[]): Awaitable<readonly ReleaseAnswer[]> {
    this.releases.push({ atMs: this.clock.elapsedMs(), items });
    return this.onRelease(() => this.inner.release(items) as readonly ReleaseAnswer[], items);
  }

  revoke(name: string, by: { holder: string; why: string }): Awaitable<readonly HolderInfo[]> {
    return this.inner.revoke(name, by);
  }

  resize(name: string, limit: number): Awaitable<number | null> {
    return this.inner.resize(name, limit);
  }

  inspect(name: string): NameInfo | null {
    return this.inner.inspect(name) as NameInfo | null;
  }

  list(prefix: string, limit: number): Awaitable<readonly NameInfo[]> {
    return this.inner.list(prefix, limit);
  }

  close(): void {
    this.closedAtMs = this.clock.elapsedMs();
  }

  /** How many renewals went out in `[fromMs, toMs)`, counted by item. */
  renewedBetween(fromMs: number, toMs: number): number {
    return this.renewals
      .filter((one) => one.atMs >= fromMs && one.atMs < toMs)
      .reduce((sum, one) => sum + one.items.length, 0);
  }
}

export interface Stage {
  clock: VirtualClock;
  store: StageStore;
  locks: Locks;
  runtime: Runtime;
}

export function stage(
  options: LocksOptions = {},
  more: { random?: Random; traits?: Partial<Traits>; clock?: VirtualClock; inner?: Store } = {},
): Stage {
  const clock = more.clock ?? new VirtualClock();
  const store = new StageStore(clock, more.traits, more.inner);
  const runtime = { clock, random: more.random ?? fixedRandom(), seams: standardSeams };
  return { clock, store, runtime, locks: createLocksOn(runtime, store, options) };
}

/** The fate of one request to the store and its reply. */
export interface Journey {
  /** Travel time of the request, and of the reply. */
  thereMs: number;
  backMs: number;
  lost: "no" | "request" | "answer";
}

/** Carries a request out as the journey says: request and reply are late, out of order or lost. */
export function travel<T>(clock: VirtualClock, journey: Journey, apply: () => T): Promise<T> {
  return new Promise((resolve) => {
    if (journey.lost === "request") return;
    clock.after(journey.thereMs, () => {
      const answer = apply();
      if (journey.lost === "no") clock.after(journey.backMs, () => resolve(answer));
    });
  });
}

/** A promise that the test settles. */
export class Deferred<T> {
  resolve!: (value: T) => void;
  reject!: (error: unknown) => void;
  readonly promise = new Promise<T>((resolve, reject) => {
    this.resolve = resolve;
    this.reject = reject;
  });
}

export const never = <T>(): Promise<T> => new Promise(() => {});

export function refusal(run: () => unknown): Error & { code?: string } {
  try {
    run();
  } catch (error) {
    return error as Error;
  }
  throw new Error("nothing was thrown");
}

export async function rejection(promise: Promise<unknown>): Promise<Error & { code?: string }> {
  let value: unknown;
  try {
    value = await promise;
  } catch (error) {
    return error as Error;
  }
  throw new Error(`nothing was rejected, but resolved with ${String(value)}`);
}

/** The outcome of a promise so far, without waiting for it. */
export function watch(promise: Promise<unknown>): { outcome: string; value: unknown } {
  const seen = { outcome: "pending", value: undefined as unknown };
  promise.then(
    (value) => Object.assign(seen, { outcome: "resolved", value }),
    (value) => Object.assign(seen, { outcome: "rejected", value }),
  );
  return seen;
}

/** The present source, compiled to a folder of its own: other tests may be writing to `dist`. */
export function build(): { file: (path: string) => string; remove: () => void } {
  const root = fileURLToPath(new URL("../../", import.meta.url));
  const dir = mkdtempSync(join(tmpdir(), "holdfast-core-"));
  writeFileSync(join(dir, "package.json"), '{"type":"module"}');
  try {
    execFileSync(
      join(root, "node_modules/.bin/tsc"),
      ["-p", "tsconfig.build.json", "--outDir", dir, "--noCheck"],
      { cwd: root },
    );
  } catch (error) {
    throw new Error(`the build failed: ${(error as { stdout?: Buffer }).stdout}`);
  }
  return {
    file: (path) => join(dir, path),
    remove: () => rmSync(dir, { recursive: true, force: true }),
  };
}

/** Runs a module in a real node process until it ends; `killed` if it did not end by itself. */
export function runNode(
  script: string,
  timeoutMs = 8_000,
): Promise<{ code: number | null; out: string; err: string; killed: boolean }> {
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      ["--input-type=module", "-e", script],
      { timeout: timeoutMs, killSignal: "SIGKILL" },
      (error, out, err) => {
        const code = error === null ? 0 : typeof error.code === "number" ? error.code : null;
        resolve({ code, out: out.trim(), err, killed: error?.killed === true });
      },
    );
  });
}
