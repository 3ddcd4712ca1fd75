import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { onTestFinished } from "vitest";

/** A bare client of Redis: it shows which data arrives, and never retries. */
export class Client {
  readonly socket: Socket;
  readonly #replies: string[] = [];
  #wake: () => void = () => {};
  /** "ECONNRESET", or "closed" without an error. */
  ended: string | null = null;

  private constructor(port: number, address: string) {
    this.socket = connect({ port, host: address, noDelay: true });
    this.socket.setEncoding("utf8");
    this.socket.on("data", (text) => {
      this.#replies.push(String(text).trim());
      this.#wake();
    });
    this.socket.on("error", (error: NodeJS.ErrnoException) => {
      this.ended ??= error.code ?? "error";
    });
    this.socket.on("close", () => {
      this.ended ??= "closed";
      this.#wake();
    });
    onTestFinished(() => {
      this.socket.destroy();
    });
  }

  static async open({ port, address }: { port: number; address: string }): Promise<Client> {
    const client = new Client(port, address);
    await once(client.socket, "connect");
    return client;
  }

  send(...words: readonly string[]): void {
    const parts = words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
    this.socket.write(`*${words.length}\r\n${parts.join("")}`);
  }

  /** Rejects when the connection ends. */
  async reply(): Promise<string> {
    for (;;) {
      const reply = this.#replies.shift();
      if (reply !== undefined) return reply;
      if (this.ended !== null) throw new Error(this.ended);
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  request(...words: readonly string[]): Promise<string> {
    this.send(...words);
    return this.reply();
  }

  /** The number of replies that have arrived and were not read. */
  get received(): number {
    return this.#replies.length;
  }
}
