import type { Actor } from "./actor.js";
import type { Stage } from "./stage.js";

/** An incident, played by real processes: first as it went wrong, then with the mend. */
export interface Story {
  /** The word for the command line. */
  readonly name: string;
  readonly title: string;
  /** What happened, in a few sentences. */
  readonly tells: string;
  /** The headings of the two parts. */
  readonly failure: string;
  readonly mend: string;
  readonly lesson: string;
  /** A page of docs/ with the mend. */
  readonly link: string;
  /** The servers that it starts. */
  readonly needs?: "redis";
  /** Leads the actors: waits for what they say, and gives them their cues. Runs once for each part. */
  direct(stage: Stage): Promise<void>;
  /** The life of one process. */
  act(actor: Actor): Promise<void>;
}
