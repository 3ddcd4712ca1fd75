import type { Verdict } from "../../check/check.js";

/** A grant as its client learned of it. */
interface Granted {
  readonly name: string;
  /** The id of the ballot. */
  readonly id: string;
  readonly token: bigint;
  readonly client: string;
  /** When the first claim of the ballot was sent. */
  readonly askedMs: number;
  readonly decidedMs: number;
}

/** A renewal that succeeded. */
interface Renewed {
  readonly name: string;
  readonly token: bigint;
  readonly client: string;
  readonly sentMs: number;
}

/** All grants and renewals of a run, by the ballots that decided them: more exact than what a client can see. */
export class GrantedBallots {
  readonly #grants = new Map<string, Granted>();
  readonly #renewals: Renewed[] = [];

  /** A grant may be reported more than once: the first time counts. */
  add(grant: Granted): void {
    const key = `${grant.name} ${grant.id}`;
    if (!this.#grants.has(key)) this.#grants.set(key, grant);
  }

  addRenewal(renewal: Renewed): void {
    this.#renewals.push(renewal);
  }

  /** The token of the ballot whose id passes the test, if it was granted. */
  tokenOf(name: string, isMeant: (id: string) => boolean): bigint | undefined {
    const grants = [...this.#grants.values()];
    return grants.find((one) => one.name === name && isMeant(one.id))?.token;
  }

  /** S2: no two ballots have one token; if one was decided before another was asked, its token is lower. */
  order(): Verdict {
    const grants = [...this.#grants.values()];
    let checked = 0;
    for (const one of grants) {
      for (const other of grants) {
        if (one === other || one.name !== other.name) continue;
        checked++;
        if (one.token === other.token) {
          return violated("S2", checked, `${tell(one)} and ${tell(other)} have the same token`);
        }
        if (one.decidedMs < other.askedMs && one.token > other.token) {
          return violated(
            "S2",
            checked,
            `${tell(one)}, before ${tell(other)}, whose token is lower`,
          );
        }
      }
    }
    return held("S2", checked);
  }

  /** S4: no renewal succeeds that was sent after another ballot was decided with a higher token. */
  renewals(): Verdict {
    let checked = 0;
    for (const renewed of this.#renewals) {
      for (const grant of this.#grants.values()) {
        if (renewed.name !== grant.name || renewed.token >= grant.token) continue;
        checked++;
        if (grant.decidedMs >= renewed.sentMs) continue;
        const { client, token, sentMs } = renewed;
        const why = `${client} renewed token ${token} by a request of ${seconds(sentMs)}, after ${tell(grant)}`;
        return violated("S4", checked, why);
      }
    }
    return held("S4", checked);
  }
}

const seconds = (ms: number): string => `${(ms / 1_000).toFixed(3)} s`;

const tell = ({ client, token, name, askedMs, decidedMs }: Granted): string =>
  `${client} got token ${token} of ${JSON.stringify(name)} (asked at ${seconds(askedMs)}, decided at ${seconds(decidedMs)})`;

const violated = (rule: "S2" | "S4", checked: number, why: string): Verdict => ({
  rule,
  verdict: "violated",
  why,
  evidence: [],
  checked,
});

const held = (rule: "S2" | "S4", checked: number): Verdict => ({
  rule,
  verdict: checked === 0 ? "unknown" : "ok",
  why: checked === 0 ? "nothing could be compared" : `held, compared ${checked} times`,
  evidence: [],
  checked,
});
