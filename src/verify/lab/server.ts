/**
 * A server of the lab: a child process on a port of its own, with its data in a folder of its own.
 * Every verb resolves when it has come true: started means that it answered a real command.
 */
export interface Server {
  /** "redis-1": unique in its lab. */
  readonly name: string;
  readonly address: string;
  readonly port: number;
  /** As `connect` takes it. */
  readonly url: string;
  /** The process to signal; null when it does not run. */
  readonly pid: number | null;
  readonly state: "running" | "paused" | "down";
  start(): Promise<void>;
  /** Asked to end; its data stays. */
  stop(): Promise<void>;
  /** SIGKILL; its data stays as far as it was written. */
  kill(): Promise<void>;
  /** SIGSTOP: connections are still accepted, nothing answers. */
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** Killed and started again, on the same port. */
  restart(): Promise<void>;
  /** Killed, its data deleted, started again. */
  wipe(): Promise<void>;
  /** Commands of clients that it has run since it started, by its own count. */
  commands(): Promise<number>;
}

/** Servers that are one store together. */
export interface Cluster<S extends Server = Server> {
  readonly servers: readonly S[];
  readonly url: string;
  /** Who leads now; rejects while nobody does. */
  leader(): Promise<S>;
}

/** Where a server runs: on loopback, or in a network namespace, under a false clock, on a disk of its own. */
export interface Site {
  readonly address: string;
  /** The command line that runs `argv` there, by exec: its process is the server's. */
  command(argv: readonly string[]): readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** Under which it keeps its data: in the lab's folder, so that it ends with the lab. */
  readonly folder?: string;
}

export const LOOPBACK: Site = {
  address: "127.0.0.1",
  command: (argv) => argv,
  env: {},
};
