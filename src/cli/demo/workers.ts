import { fileURLToPath } from "node:url";
import { WorkerProcess } from "../worker-process.js";
import type { Report, WorkerTask } from "./worker.js";

const SCRIPT = fileURLToPath(new URL("./worker.js", import.meta.url));

type Kind = Report["kind"];

/** A worker of the demo. */
export class Worker extends WorkerProcess<Report> {
  constructor(task: WorkerTask, launcher: readonly string[], folder: string) {
    super({ name: task.name, script: SCRIPT, task, launcher, folder });
  }

  /** The next report, which must be one of these kinds. */
  async report<K extends Kind>(...kinds: K[]): Promise<Extract<Report, { kind: K }>> {
    const isExpected = ({ kind }: Report): boolean => kinds.includes(kind as K);
    const report = await this.next(`"${kinds.join('" or "')}"`, isExpected);
    return report as Extract<Report, { kind: K }>;
  }

  /** Lets it go on to its write. */
  go(): void {
    this.send("");
  }
}
