import { modeOf } from "../../core/store.js";
import { fold } from "./fold.js";
import type { Event, History } from "./history.js";
import type { Run } from "./operations.js";

/**
 * Draws one event per line, in columns: time, client, kind, name or resource, op, details. For a
 * part of a history, such as a verdict's evidence, `of` is the whole history: it has the clients
 * and the start.
 */
export function drawText(events: History, { of = events }: { of?: History } = {}): string {
  const run = fold(of);
  const rows = events.map((event) => cells(run, event).map(plain));
  const widths = rows.reduce(
    (widest, row) => row.map((cell, i) => Math.max(cell.length, widest[i] ?? 0)),
    [] as number[],
  );
  const line = (row: readonly string[]): string =>
    row
      .map((cell, i) => (i === 0 ? cell.padStart(widths[i]!) : cell.padEnd(widths[i]!)))
      .join("  ")
      .trimEnd();
  return rows.map((row) => `${line(row)}\n`).join("");
}

/** The details of an event, without its client, name and op. */
export function describeEvent(event: Event, at: (atMs: number) => string): string {
  switch (event.kind) {
    case "asked": {
      const mode = modeOf(event);
      const what = mode === "permits" ? `${event.permits} of ${event.limit} permits` : mode;
      const more = [
        event.atLeastMs === undefined ? "" : `, at least ${event.atLeastMs} ms`,
        event.renew === false ? ", not renewed" : "",
        event.within === undefined ? "" : `, within ${event.within}`,
        event.together === undefined ? "" : `, all of ${event.together}`,
      ];
      return `${what}, ttl ${event.ttlMs} ms, wait ${event.waitMs} ms${more.join("")}`;
    }
    case "not-granted":
      return event.outcome;
    case "made":
      return `token ${event.token}${event.limit === undefined ? "" : `, of ${event.limit} permits`}`;
    case "revoked":
      return `token ${event.token}`;
    case "resized":
      return `to ${event.limit} permits`;
    case "clock-set":
      return `wall clock by ${event.byMs} ms`;
    case "granted":
      return `${tokenOf(event)}, until ${at(event.untilMs)}`;
    case "renewed":
    case "kept":
      return `until ${at(event.untilMs)}`;
    case "looked":
      return event.held ? "held" : "not held";
    case "lost":
      return event.reason;
    case "released":
      return event.result;
    case "entered":
    case "wrote": {
      const update = event.kind === "wrote" ? `, read ${event.read}, wrote ${event.value}` : "";
      return `step ${event.step}, ${tokenOf(event)}${update}: ${event.accepted ? "accepted" : "refused"}`;
    }
    case "wrote-unfenced": {
      const lost =
        event.found === event.read ? "" : `; it replaced ${event.found}, and an update is lost`;
      return `read ${event.read}, wrote ${event.value}${lost}`;
    }
    case "seen": {
      const holders = event.holders.map(({ op, token }) => `${op} with token ${token}`);
      const closed = event.closed === undefined ? "" : `; closed by: ${all(event.closed)}`;
      return `since ${at(event.sinceMs)}; holders: ${all(holders)}; waiters: ${all(event.waiters)}${closed}`;
    }
    case "counted":
      return `${event.commands} commands, ${event.handovers} handovers, ${event.waiters} waiters`;
    case "left":
      return `${event.waiters} waiters, ${event.timers} timers, ${event.sockets} sockets`;
    default:
      return "";
  }
}

function cells(run: Run, event: Event): string[] {
  const op = "op" in event ? event.op : "";
  const asked = run.operations.get(op)?.asked;
  const [who, about] = ((): [string, string] => {
    if ("resource" in event) return [asked?.client ?? "", event.resource];
    if ("op" in event) return [asked?.client ?? "", asked?.name ?? ""];
    if ("client" in event) return [event.client, ""];
    if ("fault" in event) return ["fault", event.fault];
    return ["store", "name" in event ? event.name : ""];
  })();
  return [run.at(event.atMs), who, event.kind, about, op, describeEvent(event, run.at)];
}

const tokenOf = ({ token, floor }: { token: bigint; floor: bigint }): string =>
  floor === token ? `token ${token}` : `token ${token} (floor ${floor})`;

const all = (items: readonly string[]): string => (items.length === 0 ? "none" : items.join(", "));

/** Escapes control characters: names come from outside, and must not move the cursor or break a line. */
export const plain = (text: string): string =>
  text.replaceAll(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (sign) => {
    const code = sign.codePointAt(0)!.toString(16);
    return `\\u{${code}}`;
  });
