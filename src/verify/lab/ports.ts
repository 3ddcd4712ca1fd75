import { createServer } from "node:net";

/**
 * Below the kernel's ports for outgoing connections: from these, a client that keeps trying to
 * reach a dead server would sooner or later get the server's own port, and reach itself.
 */
const FIRST = 10_000;
const LAST = 32_000;

export async function freePort(): Promise<number> {
  for (;;) {
    const port = FIRST + Math.floor(Math.random() * (LAST - FIRST));
    if (await isFree(port)) return port;
  }
}

export function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = createServer();
    probe.once("error", () => resolve(false));
    probe.listen(port, "127.0.0.1", () => probe.close(() => resolve(true)));
  });
}
