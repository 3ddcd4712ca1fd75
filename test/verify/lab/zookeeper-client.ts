import { once } from "node:events";
import { connect } from "node:net";
import type { Server } from "../../../src/verify/lab/server.js";

const PATH = "/key";
const CREATE = 1;
const GET = 4;
const SET = 5;
const NO_NODE = -101;
const NODE_EXISTS = -110;

/** Sets the one node that the tests use. */
export async function zooSet(server: Server, value: string): Promise<void> {
  const world = [int(1), int(31), text("world"), text("anyone")];
  const made = await ask(server, CREATE, [text(PATH), text(value), ...world, int(0)]);
  if (made.error !== NODE_EXISTS) return;
  await ask(server, SET, [text(PATH), text(value), int(-1)]);
}

export async function zooGet(server: Server): Promise<string | null> {
  const { error, body } = await ask(server, GET, [text(PATH), Buffer.from([0])]);
  if (error === NO_NODE) return null;
  return body.subarray(4, 4 + body.readInt32BE(0)).toString();
}

/** Opens a session for one request. */
async function ask(
  { address, port }: Server,
  type: number,
  body: readonly Buffer[],
): Promise<{ error: number; body: Buffer }> {
  const socket = connect(port, address);
  let received = Buffer.alloc(0);
  socket.on("data", (chunk) => {
    received = Buffer.concat([received, chunk]);
  });
  const reply = async (): Promise<Buffer> => {
    for (;;) {
      const length = received.length < 4 ? Number.POSITIVE_INFINITY : received.readInt32BE(0) + 4;
      if (received.length >= length) {
        const frame = received.subarray(4, length);
        received = received.subarray(length);
        return frame;
      }
      await once(socket, "data");
    }
  };
  // Version, last zxid, timeout, no session yet, its password, not read-only.
  socket.write(
    frame([int(0), long(0), int(10_000), long(0), blob(Buffer.alloc(16)), Buffer.alloc(1)]),
  );
  await reply();
  socket.write(frame([int(1), int(type), ...body]));
  const answer = await reply();
  socket.destroy();
  return { error: answer.readInt32BE(12), body: answer.subarray(16) };
}

const frame = (parts: readonly Buffer[]): Buffer => blob(Buffer.concat(parts));
const blob = (bytes: Buffer): Buffer => Buffer.concat([int(bytes.length), bytes]);
const text = (value: string): Buffer => blob(Buffer.from(value));

function int(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32BE(value);
  return bytes;
}

const long = (value: number): Buffer => Buffer.concat([int(0), int(value)]);
