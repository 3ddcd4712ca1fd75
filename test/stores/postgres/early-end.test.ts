import { once } from "node:events";
import { createServer, type Server, type Socket } from "node:net";
import { Pool } from "pg";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { createLocks } from "../../../src/index.js";
import { withTransactionLock } from "../../../src/postgres/index.js";
import { Connections } from "../../../src/stores/postgres/connections.js";
import { toStoreError } from "../../../src/stores/postgres/errors.js";
import { postgresStore } from "../../../src/stores/postgres/index.js";

function message(kind: string, ...fields: (string | Buffer)[]): Buffer {
  const body = Buffer.concat(fields.map((field) => Buffer.from(field)));
  const length = Buffer.alloc(4);
  length.writeInt32BE(body.length + 4);
  return Buffer.concat([Buffer.from(kind), length, body]);
}

const OPENED = [message("R", Buffer.alloc(4)), message("Z", "I")];
const ENDED = message(
  "E",
  "SFATAL\0VFATAL\0C57P05\0Mterminating connection due to idle-session timeout\0\0",
);

describe("a server ends each connection in the packet that opens it", () => {
  let server: Server;
  let pool: Pool;
  const sockets = new Set<Socket>();

  beforeEach(async () => {
    server = createServer((socket) => {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.once("data", () => socket.end(Buffer.concat([...OPENED, ENDED])));
    });
    await once(server.listen(0, "127.0.0.1"), "listening");
    const { port } = server.address() as { port: number };
    pool = new Pool({ host: "127.0.0.1", port, user: "app", database: "app" });
  });

  afterEach(async () => {
    await pool.end();
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });

  test("an acquire rejects, and the process goes on", async () => {
    const locks = createLocks(postgresStore(pool));
    await expect(locks.acquire("name", { wait: 0 })).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining("has been lost"),
      retryable: true,
    });
    await locks.close();
  });

  test("withTransactionLock rejects, and the process goes on", async () => {
    const locking = withTransactionLock(pool, "name", { wait: 0 }, () => "done");
    await expect(locking).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining("was lost"),
      retryable: true,
    });
  });

  test("a waiter that can't listen may try again", async () => {
    const subscribing = new Connections(pool).subscribe("channel", { message: () => {} });
    const error = await subscribing.catch((cause: unknown) => toStoreError(cause, "the server"));
    expect(error).toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining("has been lost"),
      retryable: true,
    });
  });
});
