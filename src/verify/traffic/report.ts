import { writeSync } from "node:fs";
import { encodeEvent } from "../check/encode.js";
import type { Event } from "../check/history.js";
import { type EventWithoutTime, machineMs } from "./time-line.js";

/**
 * Writes a line to the process that started this one. It writes at once, not by the event loop, so
 * that the line is out before this process is stopped or killed. The pipe does not block, so it can
 * be full while the reader is slow.
 */
export function say(line: string): void {
  let rest = Buffer.from(line);
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(1, rest));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EAGAIN") throw error;
      block(1);
    }
  }
}

export function report(event: EventWithoutTime, atMs = machineMs()): void {
  say(`${encodeEvent({ atMs, ...event } as Event)}\n`);
}

export function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}
