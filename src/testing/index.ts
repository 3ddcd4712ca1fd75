export {
  type Case,
  conformance,
  type FencedCell,
  type Report,
  runCase,
  runConformance,
  type Subject,
} from "../conformance/index.js";
export { matrixOf } from "../conformance/matrix.js";
export { createLocksOn } from "../core/locks.js";
export { honest, type Runtime, type Seams, systemRuntime } from "../core/runtime.js";
export { type Fault, FaultyStore } from "./faulty-store.js";
export { MUTANTS, type Mutant, type MutantName } from "./mutants.js";
export { seededRandom } from "./seeded-random.js";
export { VirtualClock } from "./virtual-clock.js";
