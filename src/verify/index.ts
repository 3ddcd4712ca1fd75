export {
  checkHistory,
  LIMITS,
  type Limits,
  RULES,
  type RuleId,
  type Verdict,
} from "./check/check.js";
export { drawText } from "./check/draw.js";
export type { Event, History } from "./check/history.js";
export { type Outcome, simulate } from "./simulate/run.js";
export { drawSchedule, type Schedule } from "./simulate/schedule.js";
export {
  type Failure,
  type Found,
  type Search,
  search,
  shortestFailure,
} from "./simulate/search.js";
export type { Loop } from "./traffic/protocol.js";
export { machineMs, TimeLine } from "./traffic/time-line.js";
export { Worker, WorkerError, type WorkerOptions } from "./traffic/worker.js";
