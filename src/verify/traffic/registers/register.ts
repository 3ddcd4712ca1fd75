import { StaleTokenError } from "../../../core/errors.js";
import type { Fenced } from "../../../fence/fence.js";

/** A step of a resource: an access that its fence has accepted or refused. */
export interface Answered {
  readonly accepted: boolean;
  /** The number of this step in the resource's order. */
  readonly step: number;
}

/**
 * The resources that workers write to: for each name a number behind a fence, and another one without a
 * fence.
 */
export interface Register {
  /** Null: it is not known whether it was done. */
  enter(resource: string, lease: Fenced): Promise<Answered | null>;
  read(resource: string): Promise<{ value: number; unfenced: number }>;
  /** Null: it is not known whether it was done. */
  write(resource: string, lease: Fenced, value: number): Promise<Answered | null>;
  /** Writes without a fence. Returns the number that it replaced. */
  writeUnfenced(resource: string, value: number): Promise<number>;
  close(): unknown;
}

/** Where a server keeps the resources of a run. */
export interface RegisterPlace {
  readonly fence: ServerFence;
  readonly url: string;
  /** The name of the run: each has resources of its own. */
  readonly space: string;
}

/** The fences of servers that the verifier can start. */
const SERVER_FENCES = ["redis", "postgres", "etcd", "zookeeper"] as const;
export type ServerFence = (typeof SERVER_FENCES)[number];
/** The default is the one in an SQLite file. */
export const REGISTER_FENCES = ["sqlite", ...SERVER_FENCES] as const;
export type RegisterFence = (typeof REGISTER_FENCES)[number];

/** The steps that a server must be able to take for a register. */
export interface Cells {
  /** Checks the token, counts the step and writes the value, if there is one, at once. Resolves to the step. */
  access(resource: string, lease: Fenced, value: number | null): Promise<number>;
  /** Counts a step that the fence has refused. It comes after the refusal, so nobody takes it for earlier. */
  count(resource: string): Promise<number>;
  read(resource: string): Promise<{ value: number; unfenced: number }>;
  swap(resource: string, value: number): Promise<number>;
  close(): unknown;
}

/** A register on a server that has a fence. */
export class ServerRegister implements Register {
  readonly #cells: Cells;

  constructor(cells: Cells) {
    this.#cells = cells;
  }

  enter(resource: string, lease: Fenced): Promise<Answered | null> {
    return this.#step(resource, lease, null);
  }

  read(resource: string): Promise<{ value: number; unfenced: number }> {
    return this.#cells.read(resource);
  }

  write(resource: string, lease: Fenced, value: number): Promise<Answered | null> {
    return this.#step(resource, lease, value);
  }

  writeUnfenced(resource: string, value: number): Promise<number> {
    return this.#cells.swap(resource, value);
  }

  close(): unknown {
    return this.#cells.close();
  }

  /** A worker that was paused in the middle may have lost its connection. */
  async #step(resource: string, lease: Fenced, value: number | null): Promise<Answered | null> {
    try {
      return { accepted: true, step: await this.#cells.access(resource, lease, value) };
    } catch (error) {
      if (!(error instanceof StaleTokenError)) return null;
      return { accepted: false, step: await this.#cells.count(resource) };
    }
  }
}
