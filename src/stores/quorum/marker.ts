/** A node's record of itself, as lua/marker.lua writes it. */
export interface Marker {
  readonly format: number;
  /** The server process that was last examined. */
  readonly runId: string;
  /** The longest maxTtl of all clients so far. */
  readonly maxTtlMs: number;
  /** `always`: each write was on the disk before its reply. */
  readonly fsync: string;
  /** The node is out of the vote because it has no trace of use. */
  readonly isNew: boolean;
  /** When data were found to be missing, by the node's clock in µs; 0: the node is in service. */
  readonly sinceMicros: number;
}

/** Null: it is no marker of any version. */
export function parseMarker(text: string): Marker | null {
  const [, format, runId = "", maxTtlMs, fsync = "", state, since] =
    /^(\d+)(?: (\w+) (\d+) ([a-z]+) ([a-z]*)(\d+))?\b/.exec(text) ?? [];
  if (format === undefined) return null;
  return {
    format: Number(format),
    runId,
    maxTtlMs: Number(maxTtlMs),
    fsync,
    isNew: state === "new",
    sinceMicros: Number(since),
  };
}
