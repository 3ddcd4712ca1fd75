import type { HolderInfo, NameInfo } from "../../core/store.js";
import { slices } from "../shared/slices.js";
import { compareUtf8 } from "../shared/utf8.js";
import { majorityOf } from "./ballot.js";
import { unavailable } from "./errors.js";
import { askAll, type Member } from "./member.js";
import type { Membership } from "./membership.js";
import { type Descriptions, holdingsOf, toNameInfo } from "./name-info.js";
import type { QuorumNode } from "./node.js";

export const INSPECTION_LIMITS = { silentMs: 250, timeoutMs: 5_000 };
const NAMES_AT_ONCE = 100;

const NOT_AWAITED = new Error("it is silent");

interface Answers<T> {
  readonly good: readonly { readonly where: string; readonly answer: T }[];
  /** The nodes that did not answer. */
  readonly missing: readonly string[];
}

/** The requests of people: inspect, list and revoke. Each needs the replies of a majority. */
export class Inspection {
  readonly #members: readonly Member[];
  readonly #membership: Membership;
  readonly #majority: number;

  constructor(members: readonly Member[], membership: Membership) {
    this.#members = members;
    this.#membership = membership;
    this.#majority = majorityOf(members.length);
  }

  async inspect(name: string): Promise<NameInfo | null> {
    const [descriptions] = await this.#describe([name]);
    return toNameInfo(name, this.#members.length, descriptions!);
  }

  async list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    const { good } = await this.#askMajority((node) => node.names(prefix));
    const names = [...new Set(good.flatMap(({ answer }) => answer))]
      .filter((name) => name.startsWith(prefix))
      .sort(compareUtf8);
    const infos: NameInfo[] = [];
    for (const some of slices(names, NAMES_AT_ONCE)) {
      if (infos.length >= limit) break;
      for (const [i, descriptions] of (await this.#describe(some)).entries()) {
        const info = toNameInfo(some[i]!, this.#members.length, descriptions);
        if (info !== null && info.holders.length + (info.notes?.length ?? 0) > 0) infos.push(info);
      }
    }
    return infos.slice(0, limit);
  }

  /**
   * Revokes the grant that a majority has, and returns its holder. A record on fewer nodes may be of a ballot that
   * is under way: if nodes dropped it after their vote, the ballot could still be decided, and nobody would know.
   */
  async revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    const [descriptions] = await this.#describe([name]);
    const [most] = holdingsOf(descriptions!);
    if (most === undefined || most.nodes < this.#majority) return [];
    const { id, number, holder } = most;
    const revocation = { name, id, number, holder, by: by.holder, why: by.why };
    await this.#askMajority((node) => node.revoke(revocation));
    return toNameInfo(name, this.#members.length, descriptions!)!.holders;
  }

  /** One for each name, in order. */
  async #describe(names: readonly string[]): Promise<Descriptions[]> {
    const { good, missing } = await this.#askMajority((node) => node.inspect(names));
    return names.map((_, i) => {
      return { given: good.map(({ where, answer }) => ({ where, info: answer[i]! })), missing };
    });
  }

  /** Rejects if fewer than a majority answer. */
  async #askMajority<T>(send: (node: QuorumNode) => Promise<T>): Promise<Answers<T>> {
    await this.#membership.join();
    // Nodes that are silent are not waited for if the others are a majority.
    const answers = await askAll(this.#members, INSPECTION_LIMITS, send, (some) => {
      const votes = [...some.values()].filter((answer) => !(answer instanceof Error)).length;
      const isRestSilent = this.#members.every(({ isSilent }, i) => isSilent || some.has(i));
      return votes >= this.#majority && isRestSilent;
    });
    const good: { where: string; answer: T }[] = [];
    const missing: string[] = [];
    const failures: Error[] = [];
    for (const [i, { node }] of this.#members.entries()) {
      const answer = answers.has(i) ? (answers.get(i) as T | Error) : NOT_AWAITED;
      if (!(answer instanceof Error)) good.push({ where: node.where, answer });
      else {
        missing.push(node.where);
        failures.push(answer);
      }
    }
    if (good.length < this.#majority) throw unavailable(this.#members.length, failures);
    return { good, missing };
  }
}
