import type { Store, Traits } from "../core/store.js";
import type { Finding, Trial } from "../doctor/finding.js";
import type { StoreUrl, UrlForm } from "./url.js";

/**
 * Everything that others need to know about one kind of store. A kind is loaded with the package,
 * so it loads the store's code, its doctor and its client library by `import()` in its functions.
 */
export interface StoreKind {
  /** The schemes of its URLs, without the colon. */
  readonly schemes: readonly [string, ...string[]];
  /** The part of its URLs after the scheme. */
  readonly form: UrlForm;
  /** The options that its URLs can have. */
  readonly options: readonly string[];
  /** A URL for each set of traits that the store can have; the matrix in the docs has a column for each. */
  readonly examples: readonly [string, ...string[]];
  /** Which processes can share the store. */
  readonly scope: Traits["scope"];
  /** Throws InvalidArgumentError if the URL is wrong in a way that its form and options don't show. */
  check?(url: StoreUrl): void;
  /** The traits of the store behind the URL, without a connection to it. */
  traits(url: StoreUrl): Promise<Traits>;
  /** Rejects with StoreUnavailableError if the store can't be reached. */
  open(url: StoreUrl): Promise<Store>;
  /** Only of stores that keep their locks in tables of a database, which a user with more rights can make. */
  readonly setup?: StoreSetup;
  /** Reports what endangers locks on the store. Rejects with StoreUnavailableError if it can't be reached. */
  examine(url: StoreUrl, trial: Trial): Promise<readonly Finding[]>;
}

/** Makes the tables of a store before its first use, which otherwise makes them. */
interface StoreSetup {
  /** The statements that `run` would execute, for the database's own client. Needs no connection. */
  sql(url: StoreUrl, grantee?: string): Promise<string>;
  /**
   * Makes the tables unless they are there, and gives a user of the database the rights that locks need. Rejects
   * with StoreUnavailableError if that fails, and with InvalidArgumentError if there is no such user.
   */
  run(url: StoreUrl, grantee?: string): Promise<SetupResult>;
}

export interface SetupResult {
  /** The tables, in words. */
  readonly what: string;
  /** False: they were there already. */
  readonly isMade: boolean;
}
