import type { HolderInfo, NameInfo } from "../../core/store.js";
import { LOCK_LIMIT } from "../../core/store.js";
import { majorityOf } from "./ballot.js";
import type { NodeNameInfo } from "./node.js";

/** A name as the nodes described it. */
export interface Descriptions {
  /** An error: the node can't read its record. */
  readonly given: readonly { readonly where: string; readonly info: NodeNameInfo | Error }[];
  /** The nodes that did not answer. */
  readonly missing: readonly string[];
}

export interface Holding {
  /** The short id of the ballot. */
  readonly id: string;
  readonly number: number;
  readonly holder: string;
  /** How many nodes have it. */
  readonly nodes: number;
}

/** All ballots that any node has a record of, the one on most nodes first. */
export function holdingsOf(descriptions: Descriptions): Holding[] {
  const byId = new Map<string, { numbers: number[]; holder: string }>();
  for (const { record } of readable(descriptions)) {
    if (record === null) continue;
    const { numbers } = byId.get(record.id) ?? { numbers: [] };
    byId.set(record.id, { numbers: [...numbers, record.number], holder: record.holder });
  }
  return [...byId]
    .map(([id, { numbers, holder }]) => {
      return { id, holder, number: mostFrequent(numbers), nodes: numbers.length };
    })
    .sort((a, b) => b.nodes - a.nodes);
}

/** A name as a majority of all nodes has it, and where single nodes differ. Null: no node has anything. */
export function toNameInfo(
  name: string,
  nodes: number,
  descriptions: Descriptions,
): NameInfo | null {
  const [most] = holdingsOf(descriptions);
  const held = most !== undefined && most.nodes >= majorityOf(nodes) ? most : null;
  const notes = notesOf(descriptions, held);
  const revoked = revocationsOf(descriptions);
  if (held === null && notes.length === 0 && revoked.length === 0) return null;
  notes.push(...descriptions.missing.map((where) => `${where} did not answer`));
  return {
    name,
    limit: LOCK_LIMIT,
    holders: held === null ? [] : [holderOf(held, descriptions)],
    waiting: 0,
    waiters: [],
    revoked,
    ...(notes.length === 0 ? {} : { notes }),
  };
}

/** The holder, with the medians of the times that its nodes report: one wrong clock does not change them much. */
function holderOf(held: Holding, descriptions: Descriptions): HolderInfo {
  const records = readable(descriptions).flatMap(({ record }) =>
    record?.id === held.id ? [record] : [],
  );
  const median = (numbers: number[]): number =>
    numbers.sort((a, b) => a - b)[Math.floor((numbers.length - 1) / 2)]!;
  return {
    holder: held.holder,
    mode: "exclusive",
    token: BigInt(held.number),
    permits: LOCK_LIMIT,
    heldMs: Math.max(0, median(records.map(({ heldMs }) => heldMs))),
    expiresInMs: median(records.map(({ expiresInMs }) => expiresInMs)),
    closed: records.filter(({ closed }) => closed).length > records.length / 2,
  };
}

function notesOf({ given }: Descriptions, held: Holding | null): string[] {
  return given.flatMap(({ where, info }) => {
    if (info instanceof Error) return [`${where}: ${info.message}`];
    const { record } = info;
    if (record === null) return held === null ? [] : [`on ${where} nobody holds it`];
    if (record.id === held?.id) return [];
    const than = held === null ? ", on no majority that answers" : ", unlike on a majority";
    return [`on ${where} ${record.holder} holds it${than}`];
  });
}

function revocationsOf(descriptions: Descriptions): NameInfo["revoked"] {
  const byId = new Map<string, NameInfo["revoked"][number]>();
  for (const { revoked } of readable(descriptions)) {
    for (const { id, ...one } of revoked) byId.set(id, one);
  }
  return [...byId.values()].sort((a, b) => b.agoMs - a.agoMs);
}

const readable = ({ given }: Descriptions): NodeNameInfo[] =>
  given.flatMap(({ info }) => (info instanceof Error ? [] : [info]));

function mostFrequent(numbers: readonly number[]): number {
  const count = (one: number): number => numbers.filter((other) => other === one).length;
  return numbers.reduce((best, one) => (count(one) > count(best) ? one : best));
}
