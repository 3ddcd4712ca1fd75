import { InvalidArgumentError } from "../../core/errors.js";
import type { StoreKind } from "../kind.js";

export const sqliteKind: StoreKind = {
  schemes: ["sqlite"],
  form: "file",
  options: [],
  examples: ["sqlite:/var/lib/app/locks.db"],
  scope: "machine",
  check({ path }) {
    if (path !== "" && path !== ":memory:") return;
    throw new InvalidArgumentError(
      "sqlite: needs a file's path, as in sqlite:./locks.db or sqlite:/var/lib/app/locks.db",
    );
  },
  traits: async () => (await import("./index.js")).SQLITE_TRAITS,
  open: async ({ path }) => (await import("./open.js")).openSqliteStore(path),
  examine: async (url, trial) => (await import("./doctor.js")).examineSqlite(url, trial),
};
