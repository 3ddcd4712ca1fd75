import { modeOf } from "../../core/store.js";
import type { Event, EventOf } from "../check/history.js";
import type { Run } from "../check/operations.js";
import type { CheckResult, Result } from "../runner/result.js";

/** One event as a sentence: subject and predicate. */
export interface Sentence {
  readonly subject: string;
  readonly predicate: string;
}

/** A number with a comma between thousands. */
export const count = (value: number): string => String(value).replace(/\B(?=(\d{3})+$)/g, ",");

/** "1 fault", "2 faults". */
export const counted = (value: number, one: string, several = `${one}s`): string =>
  `${count(value)} ${value === 1 ? one : several}`;

/** "12 faults", and those that did not strike, if there are any. */
export const faultsOf = ({ faults, failedFaults }: Result): string =>
  counted(faults, "fault") +
  (failedFaults === 0 ? "" : ` (${count(failedFaults)} more did not strike)`);

/** A duration with a unit that suits its size. */
export function duration(ms: number): string {
  if (!Number.isFinite(ms)) return "no end";
  if (ms === 0) return "0 ms";
  if (ms < 1) return `${Number(ms.toPrecision(2))} ms`;
  if (ms < 9.95) return `${Number(ms.toFixed(1))} ms`;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${Number((ms / 1_000).toFixed(ms < 9_950 ? 2 : 1))} s`;
  const seconds = Math.round(ms / 1_000);
  const minutes = Math.floor(seconds / 60);
  return seconds % 60 === 0 ? `${minutes} min` : `${minutes} min ${seconds % 60} s`;
}

/** Adds a full stop if the text has none. */
export const sentence = (text: string): string => (/[.!?]$/.test(text) ? text : `${text}.`);

/** The verdict in a few words. Promises that no run put to the test are not counted as held. */
export function headline(result: Result): string {
  const { outcome, checks } = result;
  if (outcome === "held") {
    return unseenOf(result).length === 0 ? "Every promise held" : "Every tested promise held";
  }
  if (outcome === "unknown") return "No verdict";
  const broken = checks.filter(({ verdict }) => verdict === "violated").length;
  return broken <= 1 ? "A promise was broken" : `${broken} promises were broken`;
}

/** Whether the store does not offer what the check is about. */
export const isOffered = ({ id }: CheckResult, { notOffered }: Result): boolean =>
  !notOffered.some((one) => one === id);

/** The promises that the store gives, and that no run put to the test. */
export const unseenOf = (result: Result): readonly string[] =>
  result.checks
    .filter((one) => one.verdict === "unknown" && isOffered(one, result))
    .map(({ id }) => id);

/** "S1", "S1 and S4", "S1, S4 and L2". */
export const listed = (items: readonly string[]): string =>
  items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;

export const percent = (share: number): string => `${(100 * share).toFixed(1)} %`;

export function describeEvent(event: Event, run: Run, at: (atMs: number) => string): Sentence {
  const asked = "op" in event ? run.operations.get(event.op)?.asked : undefined;
  const worker = asked?.client ?? "a worker";
  const name = quoted(asked?.name ?? "a name");
  const by = (subject: string, predicate: string): Sentence => ({ subject, predicate });
  switch (event.kind) {
    case "seen":
      return by("store", `shows ${quoted(event.name)}: ${contents(event)}`);
    case "resized":
      return by("store", `has ${quoted(event.name)} resized to ${event.limit} permits`);
    case "clock-set":
      return by(
        "store",
        `has its wall clock set ${event.byMs < 0 ? "back" : "ahead"} by ${duration(Math.abs(event.byMs))}`,
      );
    case "counted":
      return by(
        "store",
        `takes ${counted(event.commands, "command")} for ${counted(event.handovers, "handover")} with ${counted(event.waiters, "waiter")}`,
      );
    case "made":
      return by("store", `grants ${name} to ${worker} with token ${event.token}`);
    case "kept":
      return by("store", `keeps the grant of ${worker} until ${at(event.untilMs)}`);
    case "revoked":
      return by("operator", `takes ${name} by force from ${worker} (token ${event.token})`);
    case "injected":
      return by("fault", `begins: ${event.fault}`);
    case "healed":
      return by("fault", `is healed: ${event.fault}`);
    case "paused":
      return by(event.client, event.frozen ? "is frozen, and its clocks stop" : "is paused");
    case "resumed":
      return by(event.client, "runs again");
    case "killed":
      return by(event.client, "is killed");
    case "left":
      return by(
        event.client,
        `has closed, and still has ${counted(event.waiters, "waiter")}, ${counted(event.timers, "timer")} and ${counted(event.sockets, "socket")}`,
      );
    default:
      return by(worker, predicateOf(event, name, at));
  }
}

type OfWorker = Exclude<Extract<Event, { op: string }>, EventOf<"made" | "kept" | "revoked">>;

function predicateOf(event: OfWorker, name: string, at: (atMs: number) => string): string {
  switch (event.kind) {
    case "asked":
      return `requests ${quoted(event.name)}${modeWords(event)}, ttl ${duration(event.ttlMs)}, ${waitWords(event.waitMs)}`;
    case "queued":
      return `has its place in the queue of ${name}`;
    case "aborting":
      return `aborts its wait for ${name}`;
    case "not-granted":
      return `does not get ${name}: ${OUTCOMES[event.outcome]}`;
    case "granted":
      return `holds ${name} with ${tokenWords(event)}; its lease lasts until ${at(event.untilMs)}`;
    case "renewed":
      return `renews its lease of ${name} until ${at(event.untilMs)}`;
    case "looked":
      return `checks its lease of ${name}: ${event.held ? "held" : "not held"}`;
    case "lost":
      return `is notified that ${name} is lost: ${event.reason}`;
    case "releasing":
      return `begins to release ${name}`;
    case "released":
      return RELEASES[event.result](name);
    case "entered":
      return `shows ${tokenWords(event)} to the fence of ${quoted(event.resource)}: ${verdictOf(event)}`;
    case "wrote":
      return `has read ${event.read} from ${quoted(event.resource)} and writes ${event.value} with ${tokenWords(event)}: ${verdictOf(event)}`;
    case "wrote-unfenced":
      return `has read ${event.read} from the number of ${quoted(event.resource)} without a fence and writes ${event.value} over ${event.found}`;
  }
}

const OUTCOMES: Readonly<Record<EventOf<"not-granted">["outcome"], string>> = {
  busy: "another worker holds it",
  timeout: "its wait timed out",
  aborted: "the wait was aborted",
  unknown: "the store gave no reply, and may have granted it",
  refused: "the store refused the request",
};

const RELEASES: Readonly<Record<EventOf<"released">["result"], (name: string) => string>> = {
  released: (name) => `has released ${name}`,
  lost: (name) => `releases ${name}, but the lease was already lost`,
  unknown: (name) => `gets no reply to its release of ${name}`,
};

const quoted = (text: string): string => `“${text}”`;

function modeWords(asked: EventOf<"asked">): string {
  const mode = modeOf(asked);
  if (mode === "exclusive") return "";
  return mode === "shared" ? " as a reader" : ` (${asked.permits} of ${asked.limit} permits)`;
}

const waitWords = (waitMs: number): string => {
  if (waitMs === 0) return "without waiting";
  return Number.isFinite(waitMs) ? `waiting up to ${duration(waitMs)}` : "waiting without end";
};

const tokenWords = ({ token, floor }: { token: bigint; floor: bigint }): string =>
  floor === token ? `token ${token}` : `token ${token} (floor ${floor})`;

const verdictOf = ({ accepted }: { accepted: boolean }): string =>
  accepted ? "accepted" : "refused";

function contents({ holders, waiters, closed = [] }: EventOf<"seen">): string {
  const held = holders.map(({ op, token }) => `${op} with token ${token}`);
  const parts = [
    held.length === 0 ? "no holder" : `held by ${held.join(", ")}`,
    waiters.length === 0 ? "nobody waits" : `${waiters.join(", ")} waiting`,
    ...(closed.length === 0 ? [] : [`closed by ${closed.join(", ")}`]),
  ];
  return parts.join("; ");
}
