/** The parts that verify Holdfast: real servers and faults, workers, histories and their checks, the simulator. */
export {
  checkHistory,
  LIMITS,
  type Limits,
  RULES,
  type RuleId,
  type Verdict,
} from "./check/check.js";
export { drawText } from "./check/draw.js";
export { decodeHistory, encodeHistory } from "./check/encode.js";
export type { Event, History } from "./check/history.js";
export { drawBeliefs } from "./check/picture.js";
export { carryOut, type Fault, fault, planFaults, type Step, together } from "./fault.js";
export { type GrpcKind, GrpcProxy } from "./faults/grpc-proxy.js";
export { Process } from "./faults/process.js";
export { type ProxyFault, TcpProxy } from "./faults/proxy.js";
export { redisConnectionKind } from "./faults/redis-kind.js";
export { killed, paused, powerLoss, restarted, wiped } from "./faults/server.js";
export { FalseClock } from "./lab/clock.js";
export { Disk } from "./lab/disk.js";
export { Lab } from "./lab/lab.js";
export { type Host, Network } from "./lab/network.js";
export { type Kind, type Missing, missing } from "./lab/requirements.js";
export { lackingRight, type Right } from "./lab/rights.js";
export type { Cluster, Server, Site } from "./lab/server.js";
export { renderReport } from "./report/render.js";
export type { CheckResult, FaultRecord, Result, RunRecord } from "./runner/result.js";
export type { Verification, VerifyOptions } from "./runner/verify.js";
export { drawSchedule } from "./simulate/draw-schedule.js";
export { type Outcome, simulate } from "./simulate/run.js";
export type { Schedule } from "./simulate/schedule.js";
export {
  type Failure,
  type Found,
  type Search,
  search,
  shortestFailure,
} from "./simulate/search.js";
export type { LabName } from "./targets/index.js";
export { verifyInLab } from "./targets/open.js";
export type { Lead, Loop, Names, Once, Options } from "./traffic/protocol.js";
export { machineMs, TimeLine } from "./traffic/time-line.js";
export { Worker, WorkerError, type WorkerOptions } from "./traffic/worker.js";
