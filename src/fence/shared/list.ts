import { checkNumber, checkOptions, checkText, orElse } from "../../core/validate.js";
import { compareUtf8 } from "../../stores/shared/utf8.js";

/** A resource that a fence has seen. */
export interface FencedResource {
  /** The resource, as it was passed to the fence. */
  readonly resource: string;
  /** The highest floor seen: tokens below it are refused. */
  readonly highest: bigint;
  /**
   * When a holder last raised the number, by the clock of the resource's database, in milliseconds since
   * 1970; null where that can't be known.
   */
  readonly enteredAtMs: number | null;
}

/** Options of `list`. */
export interface FenceListOptions {
  /** Only resources that begin so. Default: all. */
  readonly prefix?: string | undefined;
  /** The most that are returned, 1 to 10,000. Default 1,000. */
  readonly limit?: number | undefined;
}

const LIMIT = 1_000;
const MOST = 10_000;

export function checkListOptions(options: FenceListOptions = {}): {
  prefix: string;
  limit: number;
} {
  checkOptions(options, "the options of list", ["prefix", "limit"]);
  return {
    prefix: checkText(orElse(options.prefix, ""), "prefix", 0, 255),
    limit: checkNumber(orElse(options.limit, LIMIT), "limit", { min: 1, max: MOST, integer: true }),
  };
}

/** The first resources with the prefix, in the order of their UTF-8 bytes, for databases that do not sort. */
export const firstOf = (
  resources: readonly string[],
  { prefix, limit }: { prefix: string; limit: number },
): string[] =>
  resources
    .filter((resource) => resource.startsWith(prefix))
    .sort(compareUtf8)
    .slice(0, limit);
