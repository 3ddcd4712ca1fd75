import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { AdvisedCode } from "./codes.js";

const run = promisify(execFile);
export const root = fileURLToPath(new URL("../..", import.meta.url));

type Addresses = readonly (readonly [inCode: string, address: string])[];

/** As on S3: of the content alone. */
const tagOf = (content: string | null): string =>
  `"${createHash("md5")
    .update(content ?? "none")
    .digest("hex")}"`;

/** Runs advised programs, and is the storage and the service that they write to. */
export class Playground implements AsyncDisposable {
  /** Inside the project, so that "holdfast" is this package by its own exports. */
  readonly folder = mkdtempSync(join(root, ".advised-"));
  readonly home = mkdtempSync(join(tmpdir(), "holdfast-advise-"));
  readonly #storage: Server;
  readonly #contents = new Map<string, string>();
  /** Keys of requests that were carried out. */
  readonly #keys = new Set<string>();

  private constructor() {
    this.#storage = createServer(async (request, response) => {
      let body = "";
      for await (const part of request) body += part;
      const content = this.#contents.get(request.url!) ?? null;
      const { "if-match": match, "if-none-match": none } = request.headers;
      const key = request.headers["idempotency-key"];
      if (request.method === "POST") {
        if (key === undefined) return void response.writeHead(400).end();
        const isNew = !this.#keys.has(`${request.url} ${key}`);
        if (isNew) this.#contents.set(request.url!, String(Number(content) + Number(body)));
        this.#keys.add(`${request.url} ${key}`);
        return void response.writeHead(isNew ? 201 : 200).end();
      }
      if (request.method === "PUT") {
        const fits = none === "*" ? content === null : (match ?? tagOf(content)) === tagOf(content);
        if (fits) this.#contents.set(request.url!, body);
        return void response.writeHead(fits ? 200 : 412).end();
      }
      // The service has a number from the start, the storage no object.
      const text = content ?? (request.headers["fencing-token"] === undefined ? null : "0");
      if (text === null) return void response.writeHead(404).end();
      response.setHeader("ETag", tagOf(text)).end(text);
    });
  }

  static async open(): Promise<Playground> {
    const playground = new Playground();
    await new Promise<void>((resolve) =>
      playground.#storage.listen(0, "127.0.0.1", () => resolve()),
    );
    return playground;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#storage.close();
    for (const one of [this.folder, this.home]) rmSync(one, { recursive: true, force: true });
  }

  /**
   * Runs a program with addresses of running servers. Its resources get names of their own: the tokens of
   * another store would be stale there.
   */
  async run({ name, text }: AdvisedCode, addresses: Addresses = [], times = 1): Promise<void> {
    const program = this.#adapt({ name, text }, addresses);
    const file = join(this.folder, `${name}.mjs`);
    writeFileSync(file, program);
    const cwd = join(this.home, name);
    mkdirSync(cwd);
    for (let i = 0; i < times; i++) {
      await run(process.execPath, [file], { cwd, timeout: 60_000 });
    }
  }

  /** Runs an advised command in a shell, with a job that prints its token. */
  async runInShell(code: AdvisedCode, addresses: Addresses = []): Promise<string> {
    const cwd = join(this.home, code.name);
    mkdirSync(cwd);
    writeFileSync(join(cwd, "job"), "#!/bin/sh\necho $HOLDFAST_TOKEN\n", { mode: 0o755 });
    const holdfast = `holdfast() { "${process.execPath}" "${join(root, "dist/cli/main.js")}" "$@"; }`;
    const script = `${holdfast}\n${this.#adapt(code, addresses)}`;
    const { stdout } = await run("sh", ["-ec", script], { cwd, timeout: 60_000 });
    return stdout;
  }

  #adapt({ name, text }: Pick<AdvisedCode, "name" | "text">, addresses: Addresses): string {
    const { port } = this.#storage.address() as AddressInfo;
    const own = `report${name.replaceAll(/\D/g, "")}`;
    return [["127.0.0.1:8080", `127.0.0.1:${port}`] as const, ...addresses].reduce(
      (code, [from, to]) => code.replaceAll(from, to),
      text.replaceAll("report", own),
    );
  }
}
