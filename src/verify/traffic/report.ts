import { writeSync } from "node:fs";
import { encodeEvent } from "../check/encode.js";
import type { Event } from "../check/history.js";
import { type EventWithoutTime, machineMs } from "./time-line.js";

/**
 * A line to whoever started this process. At once, and not by the event loop: what is stopped or
 * killed next must have spoken before. The pipe does not block: while the one who reads is slow, it
 * is full.
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
