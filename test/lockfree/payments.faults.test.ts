import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { seededRandom } from "../../src/testing/seeded-random.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { SEED } from "../support/chance.js";
import { describeWith } from "../support/needs.js";
import { freshFile } from "../support/sqlite.js";

const WORKERS = 5;
const DELIVERIES = 100;
/** Each test has a payment of its own. */
let paymentCount = 0;
const CHARGER = fileURLToPath(new URL("charger.mjs", import.meta.url));

/** When the worker that charges is killed: before the charge is made, after it, or after the reply to it. */
const MOMENTS = ["before", "after", "replied"] as const;
type Moment = (typeof MOMENTS)[number];

/** A payment provider that may take keys, and workers that get the same payment again and again. */
class Payments {
  readonly charges: string[] = [];
  readonly receipts = new Map<string, string>();
  requests = 0;
  kills = 0;
  losses = 0;
  readonly #key = `payment:${++paymentCount}`;
  readonly #takesKeys: boolean;
  readonly #args: (provider: string) => string[];
  readonly #workers = new Map<number, { process: ChildProcess; deliveries: string[] }>();
  readonly #known = new Map<string, string>();
  /** The worker that charges is killed at these moments, one for each request; then also a bystander. */
  readonly #moments: Moment[];
  readonly #random = seededRandom(SEED);
  #provider = "";
  #allDone = (): void => {};
  #failed = (_error: Error): void => {};

  constructor(url: string, options: { takesKeys: boolean; moments: Moment[]; ttl: string }) {
    this.#takesKeys = options.takesKeys;
    this.#moments = [...options.moments];
    this.#args = (provider) => [CHARGER, url, provider, options.ttl];
  }

  /** Delivers the payment to all workers, and again what a killed worker has not acknowledged. */
  async deliver(): Promise<void> {
    const server = createServer((request, response) => this.#charge(request, response));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    this.#provider = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    onTestFinished(() => {
      this.#workers.forEach(({ process }) => void process.kill("SIGKILL"));
      server.closeAllConnections();
      server.close();
    });
    const done = new Promise<void>((resolve, reject) => {
      this.#allDone = resolve;
      this.#failed = reject;
    });
    const ids = Array.from({ length: DELIVERIES }, (_, i) => `${i}`);
    for (let i = 0; i < WORKERS; i++) this.#start(ids.filter((id) => Number(id) % WORKERS === i));
    await done;
  }

  #start(deliveries: string[]): void {
    const child = spawn(process.execPath, this.#args(this.#provider), {
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.#workers.set(child.pid!, { process: child, deliveries });
    child.on("exit", (code, signal) => {
      if (signal !== "SIGKILL") this.#failed(new Error(`a worker has ended with ${code}`));
    });
    createInterface({ input: child.stdout }).on("line", (line) => {
      const [id, receipt] = line.split(" ") as [string, string | undefined];
      if (id === "ready")
        child.stdin.write(deliveries.map((one) => `${one} ${this.#key}\n`).join(""));
      else if (id === "lost") this.losses++;
      else this.receipts.set(id, receipt!);
      if (this.receipts.size === DELIVERIES) this.#allDone();
    });
  }

  /** Another worker gets what the killed one has not acknowledged. */
  #kill(pid: number): void {
    const worker = this.#workers.get(pid);
    // Its request may arrive after it was killed.
    if (worker === undefined) return;
    const { process, deliveries } = worker;
    this.#workers.delete(pid);
    process.kill("SIGKILL");
    this.kills++;
    this.#start(deliveries.filter((id) => !this.receipts.has(id)));
  }

  #charge(request: IncomingMessage, response: ServerResponse): void {
    this.requests++;
    const moment = this.#moments.shift();
    const pid = Number(request.headers["worker"]);
    const key = String(request.headers["idempotency-key"]);
    if (moment === "before") this.#kill(pid);
    else {
      const known = this.#takesKeys ? this.#known.get(key) : undefined;
      const receipt = known ?? `receipt-${this.charges.length + 1}`;
      if (known === undefined) this.charges.push(receipt);
      this.#known.set(key, receipt);
      if (moment === "after") this.#kill(pid);
      else response.end(receipt, () => moment === "replied" && this.#kill(pid));
    }
    if (moment === undefined) return;
    const bystanders = [...this.#workers.keys()].filter((one) => one !== pid);
    this.#kill(bystanders[Math.floor(this.#random.unit() * bystanders.length)]!);
  }
}

/** Each moment once, with random ones in between. */
function drawMoments(): Moment[] {
  const random = seededRandom(SEED);
  const drawn = Array.from({ length: 2 }, () => MOMENTS[Math.floor(random.unit() * 3)]!);
  return ["before", "after", ...drawn, "replied"];
}

function paymentTests(urlOf: () => string): void {
  test("100 deliveries, workers killed: one charge at a provider that takes the key too", async () => {
    const moments = drawMoments();
    const payments = new Payments(urlOf(), { takesKeys: true, moments, ttl: "2s" });
    await payments.deliver();
    expect(payments.charges).toEqual(["receipt-1"]);
    expect(new Set(payments.receipts.values())).toEqual(new Set(["receipt-1"]));
    expect(payments.kills).toBeGreaterThanOrEqual(4);
    // A worker charges only if all before it were killed, or have lost their lease.
    expect(payments.requests).toBeLessThanOrEqual(1 + payments.kills + payments.losses);
    expect(payments.requests).toBeLessThan(DELIVERIES / 2);
  });

  test("without a crash, a provider that takes no key is charged once too", async () => {
    const payments = new Payments(urlOf(), { takesKeys: false, moments: [], ttl: "30s" });
    await payments.deliver();
    expect([payments.charges, payments.requests]).toEqual([["receipt-1"], 1]);
    expect(new Set(payments.receipts.values())).toEqual(new Set(["receipt-1"]));
  });

  test("the limit: a provider that takes no key is charged again after a crash, and there is one result", async () => {
    const payments = new Payments(urlOf(), { takesKeys: false, moments: ["after"], ttl: "2s" });
    await payments.deliver();
    expect(payments.charges.length).toBeGreaterThanOrEqual(2);
    const results = new Set(payments.receipts.values());
    expect(results.size).toBe(1);
    // The charge of the crashed worker is known to nobody.
    expect(results).not.toContain("receipt-1");
  });
}

describe("on SQLite", () => {
  paymentTests(() => `sqlite:${freshFile()}`);
});

describeWith(["redis", "postgres"], "on a server", () => {
  let lab: Lab;
  const urls = { redis: "", postgres: "" };
  beforeAll(async () => {
    lab = await Lab.open();
    const [redis, postgres] = await Promise.all([lab.redis(), lab.postgres()]);
    Object.assign(urls, { redis: redis.url, postgres: postgres.url });
  }, 60_000);
  afterAll(() => lab.close());
  describe("of Redis", () => paymentTests(() => urls.redis));
  describe("of PostgreSQL", () => paymentTests(() => urls.postgres));
});
