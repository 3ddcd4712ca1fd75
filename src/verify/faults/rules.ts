import type { Fault } from "../fault.js";

export type Direction = "to-server" | "to-client";

/** Selects bytes: those that contain the text, or for which the function returns true. */
export type Filter = string | ((bytes: Buffer) => boolean);

export interface Traffic {
  chunks: number;
  bytes: number;
}

/** Limits a fault to a part of the traffic. */
export interface Limit<Kind extends string = string> {
  /** The kind of connection or stream that the fault hits. Default: all. */
  readonly only?: Kind | undefined;
}

export interface Strikes<Kind extends string = string> extends Limit<Kind> {
  /** The requests that the fault hits. Default: any request. */
  readonly when?: Filter;
  /** How often the fault strikes. Default: once; `Infinity`: until it is healed. */
  readonly times?: number;
}

/** A fault that waits for a matching request. */
export interface ProxyFault extends Fault {
  /** How often it has struck since it was injected. */
  readonly struck: number;
}

/** The effects of a rule on the connection or stream whose bytes it sees. */
export interface Struck {
  /** Whether the pending request matches. */
  asks(when?: Filter): boolean;
  /** Delivers these last bytes; the rest vanishes until the rule is healed. */
  breakOff(direction: Direction, bytes: Buffer, rule: Rule): void;
  /** Delivers these last bytes to the server, then resets both sides. */
  resetAfter(bytes: Buffer): void;
  /** Loses the reply to the pending request, and calls `lost` then. */
  losesReply(silent: boolean, rule: Rule, lost: () => void): void;
}

/** One active fault. Lanes apply rules when bytes are delivered, not when they come in. */
export interface Rule {
  readonly only?: string | undefined;
  /** The direction that the rule affects. Default: both. */
  readonly direction?: Direction | undefined;
  readonly cuts?: boolean;
  readonly delayMs?: number;
  readonly stalls?: boolean;
  readonly swallows?: boolean;
  /** Called before bytes are delivered; true if the rule has handled them. */
  readonly onRequest?: (link: Struck, bytes: Buffer) => boolean;
  readonly onReply?: (link: Struck, bytes: Buffer) => boolean;
}

export const matches = (bytes: Buffer, when: Filter | undefined): boolean => {
  if (when === undefined) return true;
  return typeof when === "string" ? bytes.includes(when) : when(bytes);
};

/** A part of the bytes, cut inside what the filter finds: before that, and after it, may be whole messages. */
export function firstHalf(bytes: Buffer, when?: Filter): Buffer {
  if (when === undefined || !matches(bytes, when)) return bytes.subarray(0, bytes.length >> 1);
  if (typeof when === "string") return bytes.subarray(0, bytes.indexOf(when) + (when.length >> 1));
  // The shortest beginning that matches, by halves: more bytes never undo a match.
  let [tooFew, enough] = [0, bytes.length];
  while (enough - tooFew > 1) {
    const middle = (tooFew + enough) >> 1;
    if (when(bytes.subarray(0, middle))) enough = middle;
    else tooFew = middle;
  }
  return bytes.subarray(0, tooFew);
}
