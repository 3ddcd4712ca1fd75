export type { TransactionClient } from "./open-transaction.js";
export { type LockRowOptions, lockRow } from "./row-lock.js";
export type { Columns } from "./sql.js";
export {
  type TransactionLockOptions,
  type TransactionPool,
  withTransactionLock,
} from "./transaction-lock.js";
export type { PostgresTx } from "./tx.js";
export { type UpdateVersionedOptions, updateVersioned } from "./versioned-row.js";
