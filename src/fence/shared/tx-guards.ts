import { InvalidArgumentError } from "../../core/errors.js";

/** The guards of transactions that are built first and sent by `commit`. */
export class TxGuards<Tx extends object, Guard> {
  readonly #byTx = new WeakMap<Tx, Guard[]>();

  /** Notes guards, which may be none: the transaction counts as guarded from now on. */
  add(tx: Tx, ...guards: Guard[]): void {
    this.#byTx.set(tx, [...(this.#byTx.get(tx) ?? []), ...guards]);
  }

  /** The guards of a transaction. Throws `InvalidArgumentError` if it is not guarded. */
  of(tx: Tx): readonly Guard[] {
    const guards = this.#byTx.get(tx);
    if (guards !== undefined) return guards;
    throw new InvalidArgumentError(
      "this transaction is not guarded: call guard with it before commit",
    );
  }
}
