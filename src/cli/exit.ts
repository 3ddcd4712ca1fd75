import { HoldfastError } from "../core/errors.js";

/** Exit codes as in sysexits.h; 126, 127 and 128+n as shells use them. */
export const Exit = {
  ok: 0,
  failed: 1,
  usage: 64,
  unavailable: 69,
  software: 70,
  lost: 74,
  busy: 75,
  notExecutable: 126,
  notFound: 127,
  signal: 128,
} as const;

/** A failure that is not a bug: its message is for the user, without a stack. */
export class CliError extends Error {
  readonly exitCode: number;

  constructor(exitCode: number, message: string) {
    super(message);
    this.exitCode = exitCode;
  }
}

export function usage(message: string): CliError {
  return new CliError(Exit.usage, message);
}

const BY_CODE: Record<HoldfastError["code"], number> = {
  ACQUIRE_TIMEOUT: Exit.busy,
  LEASE_LOST: Exit.lost,
  STALE_TOKEN: Exit.lost,
  STORE_UNAVAILABLE: Exit.unavailable,
  INVALID_ARGUMENT: Exit.usage,
  UNSUPPORTED: Exit.unavailable,
  CLOSED: Exit.software,
  QUEUE_FULL: Exit.busy,
  CONFLICT: Exit.busy,
  IN_PROGRESS: Exit.busy,
  OTHER_REQUEST: Exit.usage,
  STORED_FAILURE: Exit.failed,
  RATE_LIMITED: Exit.busy,
};

export function exitCodeOf(error: unknown): number {
  if (error instanceof CliError) return error.exitCode;
  return HoldfastError.is(error) ? BY_CODE[error.code] : Exit.software;
}
