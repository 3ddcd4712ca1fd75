import type { Store } from "../../core/store.js";
export async function openSqliteStore(_path: string): Promise<Store> {
  throw new Error("x");
}
