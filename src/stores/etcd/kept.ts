import type { Push } from "../../core/store.js";
import type { Claimed } from "./queue.js";
import type { Session } from "./session.js";
import type { Watched } from "./waiting.js";

/** A claim that this store has made and not given up. There may be ten thousand: a class keeps them small. */
export class Kept {
  readonly name: string;
  readonly key: string;
  readonly grantId: string;
  readonly claimed: Claimed;
  session: Session;
  /** `asked`: its answer is not known yet. */
  state: "asked" | "queued" | "held" = "asked";
  /** The last ask, and when it came. */
  seq: number;
  askedAtMs: number;
  push: (push: Push) => void;
  token = 0n;
  floor = 0n;
  /** When its key was last changed, as far as is known. */
  modRevision = 0n;
  /** On its way to another session; until that is known, its key may be under either. */
  moving = false;
  /** The last move. */
  moved: Promise<unknown> | null = null;
  /** The watch that it waits by. */
  watching: Promise<Watched> | null = null;
  /** Its key was found to be gone. */
  gone = false;

  constructor(
    { name, key, grantId }: { name: string; key: string; grantId: string },
    claimed: Claimed,
    session: Session,
    ask: { seq: number; askedAtMs: number; push: (push: Push) => void },
  ) {
    this.name = name;
    this.key = key;
    this.grantId = grantId;
    this.claimed = claimed;
    this.session = session;
    this.seq = ask.seq;
    this.askedAtMs = ask.askedAtMs;
    this.push = ask.push;
  }
}
