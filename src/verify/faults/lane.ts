import type { Direction, Rule, Traffic } from "./rules.js";

/** Bytes, or a step with a place in their order: headers, an end, a reset. */
export type Parcel = Buffer | (() => void);

/** How many bytes one direction of a link holds before its sender has to wait. */
const HELD_BYTES = 1024 * 1024;

/** The methods of the link that a lane uses. */
interface Ends {
  readonly traffic: Readonly<Record<Direction, Traffic>>;
  /** The active rules for the link's kind. */
  rules(): Rule[];
  /** Whether bytes may be delivered as they are. */
  passes(direction: Direction, bytes: Buffer): boolean;
  /** Writes bytes to the receiver of this direction; false if it accepts no more until it has drained. */
  write(direction: Direction, bytes: Buffer): boolean;
  /** Makes the sender of this direction wait, or continue. */
  hold(direction: Direction, waits: boolean): void;
}

/** One direction of a link: delivers parcels in order, each when the rules let it pass. */
export class Lane {
  readonly direction: Direction;
  /** The rule by which bytes vanished here; from then on all bytes vanish. */
  hole: Rule | null = null;
  readonly #link: Ends;
  #sealed = false;
  #full = false;
  #heldBytes = 0;
  #timer: NodeJS.Timeout | undefined;
  readonly #held: { readonly parcel: Parcel; readonly cameMs: number }[] = [];

  constructor(direction: Direction, link: Ends) {
    this.direction = direction;
    this.#link = link;
  }

  get isEmpty(): boolean {
    return this.#held.length === 0;
  }

  take(parcel: Parcel): void {
    if (this.#sealed) return;
    this.#held.push({ parcel, cameMs: performance.now() });
    this.#heldBytes += sizeOf(parcel);
    this.pump();
  }

  /** The receiver accepts bytes again. */
  drained(): void {
    this.#full = false;
    this.pump();
  }

  /** Accepts nothing more. Held parcels are still delivered. */
  seal(): void {
    this.#sealed = true;
  }

  drop(): void {
    this.#sealed = true;
    this.#held.length = 0;
    this.#heldBytes = 0;
    this.pump();
  }

  /** Delivers these last bytes; the rest vanishes until healing resets the link. */
  breakOff(bytes: Buffer, rule: Rule): void {
    this.#write(bytes);
    this.hole = rule;
  }

  /** Delivers every parcel that is due. */
  pump(): void {
    clearTimeout(this.#timer);
    while (this.#held.length > 0 && !this.#full && !this.#stalled()) {
      const { parcel, cameMs } = this.#held[0]!;
      const dueInMs = this.#delayMs(cameMs);
      if (dueInMs > 0) {
        this.#timer = setTimeout(() => this.pump(), Math.ceil(dueInMs));
        break;
      }
      this.#held.shift();
      this.#heldBytes -= sizeOf(parcel);
      this.#deliver(parcel);
    }
    this.#link.hold(this.direction, this.#heldBytes > HELD_BYTES);
  }

  #deliver(parcel: Parcel): void {
    for (const rule of this.#rules()) if (rule.swallows) this.hole ??= rule;
    if (this.hole !== null) return;
    if (!Buffer.isBuffer(parcel)) parcel();
    else if (this.#link.passes(this.direction, parcel)) this.#write(parcel);
  }

  #write(bytes: Buffer): void {
    const traffic = this.#link.traffic[this.direction];
    traffic.chunks++;
    traffic.bytes += bytes.length;
    this.#full = !this.#link.write(this.direction, bytes);
  }

  #stalled(): boolean {
    return this.#rules().some((rule) => rule.stalls);
  }

  /** How long a parcel that arrived at that time still has to wait. */
  #delayMs(cameMs: number): number {
    const delayMs = this.#rules().reduce((sum, rule) => sum + (rule.delayMs ?? 0), 0);
    return delayMs === 0 ? 0 : cameMs + delayMs - performance.now();
  }

  #rules(): Rule[] {
    return this.#link
      .rules()
      .filter(({ direction }) => direction === undefined || direction === this.direction);
  }
}

const sizeOf = (parcel: Parcel): number => (Buffer.isBuffer(parcel) ? parcel.length : 0);
