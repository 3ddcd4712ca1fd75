import { InvalidArgumentError } from "../../core/errors.js";

/** The guards of transactions that are built first and sent by `commit`. */
export class TxGuards<Tx extends object, Guard> {
  readonly #byTx = new WeakMap<Tx, { readonly client: object; readonly guards: Guard[] }>();

  /** Throws `InvalidArgumentError` if a fence of another client has guarded the transaction. */
  checkClient(tx: Tx, client: object): void {
    if ((this.#byTx.get(tx)?.client ?? client) === client) return;
    throw new InvalidArgumentError(
      "a fence of another client has guarded this transaction, perhaps on another server: use one client for a transaction",
    );
  }

  /** Notes guards, which may be none: the transaction counts as guarded from now on. */
  add(tx: Tx, client: object, ...guards: Guard[]): void {
    this.checkClient(tx, client);
    this.#byTx.set(tx, { client, guards: [...(this.#byTx.get(tx)?.guards ?? []), ...guards] });
  }

  /** The guards of a transaction. Throws `InvalidArgumentError` if it is not guarded. */
  of(tx: Tx, client: object): readonly Guard[] {
    this.checkClient(tx, client);
    const guards = this.#byTx.get(tx)?.guards;
    if (guards !== undefined) return guards;
    throw new InvalidArgumentError(
      "this transaction is not guarded: call guard with it before commit",
    );
  }
}
