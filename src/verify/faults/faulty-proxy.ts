import { type Fault, fault } from "../fault.js";
import type { Link } from "./link.js";
import {
  type Direction,
  firstHalf,
  type Limit,
  matches,
  type ProxyFault,
  type Rule,
  type Strikes,
  type Traffic,
} from "./rules.js";

/** The faults of a proxy. Several may be active together. */
export abstract class FaultyProxy<Kind extends string = string> {
  readonly name: string;
  /** Bytes delivered in each direction since the proxy was opened. */
  readonly traffic: Readonly<Record<Direction, Traffic>> = {
    "to-server": { chunks: 0, bytes: 0 },
    "to-client": { chunks: 0, bytes: 0 },
  };
  protected readonly rules = new Set<Rule>();
  protected readonly links = new Set<Link>();

  protected constructor(name: string) {
    this.name = name;
  }

  /**
   * Existing connections are reset, and new ones refused; with `only`, a connection is reset as
   * soon as its kind is known.
   */
  cut({ only }: Limit<Kind> = {}): Fault {
    return this.#fault("cut off", { cuts: true, only });
  }

  /**
   * Closes the server's side of the existing connections. The clients do not notice, and what they send
   * vanishes, until healing resets them, as when a router forgets its connections. New connections work.
   */
  leaveHalfOpen({ only }: Limit<Kind> = {}): Fault {
    return this.#fault("half open", { only }, (link, rule) => link.leaveHalfOpen(rule));
  }

  /** Bytes arrive this much later, in order. Default: in both directions. */
  delay(delayMs: number, direction?: Direction, { only }: Limit<Kind> = {}): Fault {
    return this.#fault(`${delayMs} ms away`, { delayMs, direction, only });
  }

  /** A black hole: connections stay open, and the bytes of one direction vanish. */
  swallow(direction: Direction, { only }: Limit<Kind> = {}): Fault {
    return this.#fault("silent", { swallows: true, direction, only });
  }

  /** Bytes are held back, and delivered in order when healed, also those of clients that have gone. */
  stall(direction?: Direction, { only }: Limit<Kind> = {}): Fault {
    return this.#fault("stalled", { stalls: true, direction, only });
  }

  /**
   * Half a message arrives, then nothing more in that direction, until healing resets the
   * connection. Bytes that come in together count as one message; `when` filters by the bytes of
   * that direction.
   */
  truncate(direction: Direction, { when, times = 1, only }: Strikes<Kind> = {}): ProxyFault {
    const name = `breaks off in mid-message ${direction}`;
    if (direction === "to-server") {
      return this.#strikes(name, times, (strike) => ({
        only,
        onRequest(link, bytes) {
          if (!link.asks(when) || !strike()) return false;
          link.breakOff(direction, firstHalf(bytes, when), this);
          return true;
        },
      }));
    }
    return this.#strikes(name, times, (strike) => ({
      only,
      onReply(link, bytes) {
        if (!matches(bytes, when) || !strike()) return false;
        link.breakOff(direction, firstHalf(bytes, when), this);
        return true;
      },
    }));
  }

  /** A part of the request reaches the server, then both sides are reset. */
  resetMidCommand({ when, times = 1, only }: Strikes<Kind> = {}): ProxyFault {
    return this.#strikes("resets in mid-command", times, (strike) => ({
      only,
      onRequest(link, bytes) {
        if (!link.asks(when) || !strike()) return false;
        link.resetAfter(firstHalf(bytes, when));
        return true;
      },
    }));
  }

  /**
   * The request takes effect, but nothing of the reply arrives. The first bytes that the server
   * sends after the request count as the reply. The client's connection is reset, or stays open and
   * silent. `struck` counts the replies that are lost.
   */
  loseReply({
    when,
    times = 1,
    only,
    silent = false,
  }: Strikes<Kind> & { readonly silent?: boolean } = {}): ProxyFault {
    let lost = 0;
    const { name, inject, heal } = this.#strikes(
      `loses replies${silent ? " in silence" : ""}`,
      times,
      (strike) => ({
        only,
        onRequest(link) {
          if (link.asks(when) && strike()) link.losesReply(silent, this, () => lost++);
          return false;
        },
      }),
    );
    return {
      name,
      inject() {
        lost = 0;
        return inject();
      },
      heal,
      get struck() {
        return lost;
      },
    };
  }

  /** Applies the active rules to connections that already exist. */
  protected async obey(): Promise<void> {
    await this.reset(({ isCut }) => isCut);
    for (const link of this.links) link.pump();
  }

  protected async reset(which: (link: Link) => boolean): Promise<void> {
    const links = [...this.links].filter(which);
    for (const link of links) link.reset();
    await Promise.all(links.map(({ gone }) => gone));
  }

  protected add(link: Link): void {
    this.links.add(link);
    link.gone.then(() => this.links.delete(link));
    if (link.isCut) link.reset();
  }

  /** Throws if this proxy can't distinguish such a kind. */
  protected abstract checkKind(only: string): void;

  /** `strike` is called for each connection that exists when the fault is injected. */
  #fault(effect: string, rule: Rule, strike?: (link: Link, rule: Rule) => void): Fault {
    const { only, direction } = rule;
    if (only !== undefined) this.checkKind(only);
    const where = only === undefined ? this.name : `${this.name} (${only})`;
    return fault(
      `${where} ${effect}${direction === undefined ? "" : ` ${direction}`}`,
      () => {
        this.rules.add(rule);
        for (const link of this.links) if (link.isOf(rule)) strike?.(link, rule);
        return this.obey();
      },
      () => {
        this.rules.delete(rule);
        for (const link of this.links) link.closeHole(rule);
        return this.obey();
      },
    );
  }

  #strikes(effect: string, times: number, ruleOf: (strike: () => boolean) => Rule): ProxyFault {
    let struck = 0;
    const rule = ruleOf(() => struck < times && ++struck > 0);
    const { name, inject, heal } = this.#fault(effect, rule);
    return {
      name,
      inject() {
        struck = 0;
        return inject();
      },
      heal,
      get struck() {
        return struck;
      },
    };
  }
}
