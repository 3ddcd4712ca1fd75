import type { Fault } from "./fault.js";
import type { Link } from "./link.js";

export type Direction = "to-server" | "to-client";

/** Which bytes: those that contain the text, or for which the function returns true. */
export type Filter = string | ((bytes: Buffer) => boolean);

export interface Traffic {
  chunks: number;
  bytes: number;
}

/** Limits a fault to a part of the traffic. */
export interface Limit<Kind extends string = string> {
  /** The kind of connection or stream that the fault hits; every one if left out. */
  readonly only?: Kind | undefined;
}

export interface Strikes<Kind extends string = string> extends Limit<Kind> {
  /** Any request, if left out. */
  readonly when?: Filter;
  /** How often; once if left out, `Infinity` for as long as it is not healed. */
  readonly times?: number;
}

/** A fault that waits for its occasion. */
export interface ProxyFault extends Fault {
  /** How often it has struck since it was injected. */
  readonly struck: number;
}

/** One fault in force. Lanes apply rules when bytes are delivered, not when bytes come in. */
export interface Rule {
  readonly only?: string | undefined;
  /** Both, if left out. */
  readonly direction?: Direction | undefined;
  readonly cuts?: boolean;
  readonly delayMs?: number;
  readonly stalls?: boolean;
  readonly swallows?: boolean;
  /** Called before bytes are delivered; true if the rule has disposed of them. */
  readonly onRequest?: (link: Link, bytes: Buffer) => boolean;
  readonly onReply?: (link: Link, bytes: Buffer) => boolean;
}

export const matches = (bytes: Buffer, when: Filter | undefined): boolean => {
  if (when === undefined) return true;
  return typeof when === "string" ? bytes.includes(when) : when(bytes);
};

/** The first half, cut inside the text that was looked for: bytes before it may be whole messages. */
export function firstHalf(bytes: Buffer, when?: Filter): Buffer {
  const at = typeof when === "string" ? bytes.indexOf(when) : -1;
  return bytes.subarray(0, Math.floor(at === -1 ? bytes.length / 2 : at + when!.length / 2));
}
