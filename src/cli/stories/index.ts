import { noTtl, row } from "./abandoned.js";
import { deadlock } from "./deadlock.js";
import { drivers } from "./drivers.js";
import { herd } from "./herd.js";
import { jobs } from "./jobs.js";
import { lockFile } from "./lock-file.js";
import { midnight } from "./midnight.js";
import { migration } from "./migration.js";
import { notExtended } from "./not-extended.js";
import { oversold } from "./oversold.js";
import { partition } from "./partition.js";
import { scheduler } from "./scheduler.js";
import { slowCall } from "./slow-call.js";
import { splitBrain } from "./split-brain.js";
import type { Story } from "./stage.js";
import { stampede } from "./stampede.js";

/** All stories, in the order of the page. */
export const STORIES: readonly Story[] = [
  oversold,
  splitBrain,
  deadlock,
  notExtended,
  midnight,
  noTtl,
  row,
  lockFile,
  drivers,
  jobs,
  partition,
  scheduler,
  migration,
  stampede,
  slowCall,
  herd,
];
