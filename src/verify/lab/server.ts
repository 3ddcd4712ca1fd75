/**
 * A server of the lab: a child process with its own port and its own data folder. Every method
 * resolves when its effect is complete: after `start`, the server has replied to a real command.
 */
export interface Server {
  /** The name, such as "redis-1", unique in the lab. */
  readonly name: string;
  /** The IP address at which it listens. */
  readonly address: string;
  /** The port at which it listens. */
  readonly port: number;
  /** The URL for `connect`. */
  readonly url: string;
  /** The process to signal; null when it does not run. */
  readonly pid: number | null;
  /** Whether its process runs, is stopped by a signal, or is gone. */
  readonly state: "running" | "paused" | "down";
  /** Starts the server on its present data. */
  start(): Promise<void>;
  /** Ends the server regularly; its data stays. */
  stop(): Promise<void>;
  /** Kills the server (SIGKILL); its data stays as far as it was written. */
  kill(): Promise<void>;
  /** Pauses the server (SIGSTOP): connections are still accepted, but nothing replies. */
  pause(): Promise<void>;
  /** Resumes the server (SIGCONT) after `pause`. */
  resume(): Promise<void>;
  /** Kills and starts the server, on the same port. */
  restart(): Promise<void>;
  /** Kills the server, deletes its data, and starts it again. */
  wipe(): Promise<void>;
  /** How many commands of clients the server has run since it started, by its own count. */
  commands(): Promise<number>;
}

/** Servers that form one store. */
export interface Cluster<S extends Server = Server> {
  /** Its members, in order. */
  readonly servers: readonly S[];
  readonly url: string;
  /** The present leader; rejects while there is none. */
  leader(): Promise<S>;
}

/** The place where a server runs: on loopback, in a network namespace, under a false clock, on its own disk. */
export interface Site {
  /** The IP address at which a server listens there. */
  readonly address: string;
  /** The command line that runs `argv` there, by exec: its process is the server's. */
  command(argv: readonly string[]): readonly string[];
  /** Variables to add to the environment of a process there. */
  readonly env: Readonly<Record<string, string>>;
  /** The folder for the server's data, inside the lab's folder, so that it ends with the lab. */
  readonly folder?: string;
}

export const LOOPBACK: Site = {
  address: "127.0.0.1",
  command: (argv) => argv,
  env: {},
};
