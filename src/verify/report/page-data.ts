import { modeOf } from "../../core/store.js";
import { endOfWait, type Operation, type Run } from "../check/operations.js";
import { clientOf, operationsOf, viewOf, wrongTime } from "../check/picture.js";
import type { CheckResult } from "../runner/result.js";
import { harmless } from "./html.js";
import type { Model } from "./model.js";
import type { OperationRow, PageData, StoryRow } from "./page/data.js";
import { describeEvent } from "./words.js";

/** The margin around the evidence of a story, so that the reader sees what came before and after. */
const MARGIN = 0.35;
const SHORTEST_STORY_MS = 300;

/** The data with which the browser draws the time lines. */
export function pageData(model: Model): PageData {
  const index = new Indices(model);
  const { clamped } = index;
  const accesses = model.runs.flatMap((run) => [...run.accesses.values()].flat());
  return {
    fromMs: clamped(model.fromMs),
    toMs: clamped(model.toMs),
    workers: model.workers.map(harmless),
    names: model.names.map(harmless),
    operations: model.operations.map((op) => operationRow(model, index, op)),
    kills: model.runs.flatMap(({ events }) =>
      events.flatMap((event) =>
        event.kind === "killed" ? [[index.worker(event.client), clamped(event.atMs)] as const] : [],
      ),
    ),
    pauses: model.runs.flatMap((run) => pausesOf(model, index, run)),
    faults: model.faults.map(({ hits, client, fromMs, untilMs, name, failed }) => {
      const worker = hits === "worker" || hits === "connection" ? index.worker(client) : -1;
      const what = failed === undefined ? name : `${name} (did not strike)`;
      return [worker, clamped(fromMs), clamped(untilMs), harmless(what)] as const;
    }),
    refusals: accesses
      .filter(({ accepted }) => !accepted)
      .flatMap((event) => {
        const op = index.operation(model.runAt(event.atMs).operations.get(event.op));
        const what = `${event.kind === "wrote" ? "write" : "entry"} refused by the fence of ${event.resource}, token ${event.token}`;
        return op === -1 ? [] : [[op, clamped(event.atMs), harmless(what)] as const];
      }),
    losses: model.operations.flatMap((op, i) =>
      op.lost === undefined ? [] : [[i, clamped(op.lost.atMs), harmless(op.lost.reason)] as const],
    ),
    runs: model.result.runs.map(({ fromMs, seed }) => [clamped(fromMs), seed] as const),
    stories: model.broken.map((check) => storyRow(model, index, check)),
  };
}

class Indices {
  readonly #model: Model;
  readonly #workers: ReadonlyMap<string, number>;
  readonly #names: ReadonlyMap<string, number>;
  readonly #operations: ReadonlyMap<Operation, number>;

  constructor(model: Model) {
    this.#model = model;
    this.#workers = new Map(model.workers.map((worker, i) => [worker, i]));
    this.#names = new Map(model.names.map((name, i) => [name, i]));
    this.#operations = new Map(model.operations.map((op, i) => [op, i]));
  }

  /** A time since the first event, within the time line, rounded to a hundredth of a millisecond. */
  readonly clamped = (atMs: number): number => {
    const { fromMs, toMs, startMs } = this.#model;
    return Math.round((Math.min(toMs, Math.max(fromMs, atMs)) - startMs) * 100) / 100;
  };

  worker(worker: string | undefined): number {
    return this.#workers.get(worker ?? "") ?? -1;
  }

  name(name: string | undefined): number {
    return this.#names.get(name ?? "") ?? -1;
  }

  operation(op: Operation | undefined): number {
    return op === undefined ? -1 : (this.#operations.get(op) ?? -1);
  }
}

function operationRow(model: Model, index: Indices, op: Operation): OperationRow {
  const { asked, granted, notGranted, beliefs } = op;
  const mode = modeOf(asked);
  const { clamped } = index;
  return [
    index.worker(asked.client),
    index.name(asked.name),
    mode === "permits"
      ? `${asked.permits} of ${asked.limit} permits`
      : mode.replace("exclusive", ""),
    clamped(asked.atMs),
    clamped(endOfWait(op)?.atMs ?? model.runEndMs(asked.atMs)),
    harmless(asked.op),
    granted === undefined ? (notGranted?.outcome ?? (op.killed ? "killed" : "no end seen")) : "",
    granted === undefined ? "" : String(granted.token),
    granted === undefined ? "" : harmless(endingOf(op)),
    ...beliefs.flatMap(({ fromMs, toMs }) => [clamped(fromMs), clamped(toMs)]),
  ];
}

function endingOf({ beliefs, lost, releasing, released, killed }: Operation): string {
  const last = beliefs.at(-1);
  const endMs = last?.toMs;
  if (lost !== undefined && lost.atMs === endMs) return `lost: ${lost.reason}`;
  if (releasing !== undefined && releasing.atMs === endMs) {
    return released?.result === "lost" ? "released, lost before" : "released";
  }
  if (killed !== undefined && killed.atMs === endMs) return "worker killed";
  return "deadline passed";
}

function pausesOf(model: Model, index: Indices, run: Run): PageData["pauses"][number][] {
  return model.workers.flatMap((worker) => {
    const frozen = run.frozenOf(worker);
    return [...run.pausesOf(worker)].map(
      ({ fromMs, toMs }) =>
        [
          index.worker(worker),
          index.clamped(fromMs),
          index.clamped(Math.min(toMs, model.runEndMs(fromMs))),
          frozen.touches(fromMs, toMs) ? 1 : 0,
        ] as const,
    );
  });
}

function storyRow(model: Model, index: Indices, check: CheckResult): StoryRow {
  const { evidence, verdict, id } = check;
  const run = model.runAt(evidence[0]!.atMs);
  const wrong = wrongTime(operationsOf(run, evidence), evidence);
  const view = viewOf(run, evidence, wrong);
  const marginMs = Math.max(
    (view.toMs - view.fromMs) * MARGIN,
    (SHORTEST_STORY_MS - (view.toMs - view.fromMs)) / 2,
  );
  const { clamped } = index;
  return {
    check: id,
    violated: verdict === "violated",
    fromMs: clamped(view.fromMs - marginMs),
    toMs: clamped(view.toMs + marginMs),
    wrong: wrong === undefined ? null : [clamped(wrong.fromMs), clamped(wrong.toMs)],
    marks: evidence.map((event) => {
      const asked = "op" in event ? run.operations.get(event.op)?.asked : undefined;
      const name = "name" in event ? event.name : asked?.name;
      const { subject, predicate } = describeEvent(event, run, model.at);
      const text = harmless(`${subject} ${predicate}`);
      return [clamped(event.atMs), index.worker(clientOf(run, event)), index.name(name), text];
    }),
  };
}
