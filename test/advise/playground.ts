import { execFile } from "node:child_process";
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

/** Runs advised programs, and is the storage and the service that they write to. */
export class Playground implements AsyncDisposable {
  /** Inside the project, so that "holdfast" is this package by its own exports. */
  readonly folder = mkdtempSync(join(root, ".advised-"));
  readonly home = mkdtempSync(join(tmpdir(), "holdfast-advise-"));
  readonly #storage: Server;
  readonly #contents = new Map<string, { body: string; etag: number; fence: string | null }>();

  private constructor() {
    this.#storage = createServer(async (request, response) => {
      let body = "";
      for await (const part of request) body += part;
      let content = this.#contents.get(request.url!) ?? { body: "0", etag: 1, fence: null };
      const condition = request.headers["if-match"] ?? `"${content.etag}"`;
      if (request.method === "PUT" && condition !== `"${content.etag}"`) {
        response.writeHead(412).end();
        return;
      }
      if (request.method === "PUT") {
        const fence = request.headers["x-fence"]?.toString() ?? null;
        content = { body, etag: content.etag + 1, fence };
        this.#contents.set(request.url!, content);
      }
      response.setHeader("ETag", `"${content.etag}"`);
      if (content.fence !== null) response.setHeader("x-fence", content.fence);
      response.end(content.body);
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
  async run(
    { name, text }: AdvisedCode,
    addresses: readonly (readonly [inCode: string, address: string])[] = [],
    times = 1,
  ): Promise<void> {
    const { port } = this.#storage.address() as AddressInfo;
    const own = `report${name.replaceAll(/\D/g, "")}`;
    const program = [["127.0.0.1:8080", `127.0.0.1:${port}`] as const, ...addresses].reduce(
      (code, [from, to]) => code.replaceAll(from, to),
      text.replaceAll("report", own),
    );
    const file = join(this.folder, `${name}.mjs`);
    writeFileSync(file, program);
    const cwd = join(this.home, name);
    mkdirSync(cwd);
    for (let i = 0; i < times; i++) {
      await run(process.execPath, [file], { cwd, timeout: 60_000 });
    }
  }
}
