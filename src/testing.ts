export {
  type FenceCase,
  type FenceReport,
  type FenceSubject,
  fenceConformance,
  runFenceConformance,
} from "./conformance/fence-suite.js";
export {
  type Case,
  conformance,
  type FencedCell,
  type Report,
  runCase,
  runConformance,
  type Subject,
} from "./conformance/index.js";
export { matrixOf } from "./conformance/matrix.js";
export { type Runtime, type Seams, standardSeams, systemRuntime } from "./core/runtime.js";
export { createLocksOn } from "./locks.js";
export { type Fault, FaultyStore } from "./testing/faulty-store.js";
export { MUTANTS, type Mutant, type MutantName } from "./testing/mutants.js";
export {
  compareWithRule,
  type Ignored,
  type RuleComparison,
  type RuleCoverage,
} from "./testing/rule-comparison.js";
export { seededRandom } from "./testing/seeded-random.js";
export { VirtualClock } from "./testing/virtual-clock.js";
