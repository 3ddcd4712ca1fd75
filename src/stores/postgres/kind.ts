import { InvalidArgumentError } from "../../core/errors.js";
import type { StoreKind } from "../kind.js";
import { TLS_OPTIONS } from "../shared/tls.js";

export const postgresKind: StoreKind = {
  schemes: ["postgres", "postgresql"],
  form: "hosts",
  options: ["schema", "mode", "durableRelease", "tls", ...TLS_OPTIONS],
  examples: ["postgres://127.0.0.1:5432/app", "postgres://127.0.0.1:5432/app?mode=session"],
  scope: "network",
  check({ options }) {
    if (options.has("mode") && options.get("mode") !== "session") {
      throw new InvalidArgumentError(
        "the option mode of a postgres: URL can only be session: write ?mode=session for locks of sessions, and leave it out for the lease table",
      );
    }
    const durableRelease = options.get("durableRelease");
    if (durableRelease === undefined) return;
    if (options.has("mode")) {
      throw new InvalidArgumentError(
        "the option durableRelease of a postgres: URL is for the lease table: leave out either it or mode=session",
      );
    }
    if (durableRelease !== "1" && durableRelease !== "") {
      throw new InvalidArgumentError("write durableRelease=1 in postgres: URLs, or leave it out");
    }
  },
  traits: async ({ options }) =>
    options.has("mode")
      ? (await import("./session/index.js")).POSTGRES_SESSION_TRAITS
      : (await import("./index.js")).POSTGRES_TRAITS,
  open: async (url) => (await import("./open.js")).openPostgresStore(url),
  setup: {
    sql: async (url, grantee) => (await import("./setup.js")).setupScript(url, grantee),
    run: async (url, grantee) => (await import("./setup.js")).setUpPostgres(url, grantee),
  },
  examine: async (url, trial) => (await import("./doctor/index.js")).examinePostgres(url, trial),
};
