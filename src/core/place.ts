/** A place that can be changed only if it is unchanged. */
export interface VersionedPlace<Value, Next = Value, Version = unknown> {
  /** Reads value and version in one step. Null: there is nothing, and `write` can't make it. */
  read(): Promise<{ readonly value: Value; readonly version: Version } | null>;
  /**
   * Writes if the version is still that one, and resolves to the value that is there now. Resolves to false if
   * the version is another, and rejects if it is not known whether the write was done.
   */
  write(next: Next, version: Version): Promise<Value | false>;
}
