import { publish } from "../../core/events.js";

/** How often fences of this process have refused a token, since it began. */
export interface FenceRefusals {
  /** All refusals. */
  readonly total: number;
  /** The resources that were refused last, at most 100, the latest first. */
  readonly resources: readonly RefusedResource[];
}

/** The refusals of one resource. */
export interface RefusedResource {
  /** The resource, as it was passed to the fence. */
  readonly resource: string;
  /** Refusals since the process began, or since the resource was dropped from the list. */
  readonly count: number;
  /** The time of the last one, by this process's wall clock, in milliseconds since 1970. */
  readonly lastAtMs: number;
}

const MOST_RESOURCES = 100;

let total = 0;
/** The latest is last. */
const byResource = new Map<string, RefusedResource>();

/** Publishes a refusal, and counts it. */
export function reportRefusal(resource: string, token: bigint, highest: bigint): void {
  total++;
  const count = (byResource.get(resource)?.count ?? 0) + 1;
  byResource.delete(resource);
  byResource.set(resource, { resource, count, lastAtMs: Date.now() });
  if (byResource.size > MOST_RESOURCES) byResource.delete(byResource.keys().next().value!);
  publish("stale-token", () => ({ resource, token, highest }));
}

/**
 * How often fences of this process have refused a token. Each refusal is also published on
 * `holdfast:stale-token`. A service behind `guardFetch` or `guardNode` counts what it refuses; its
 * clients do not.
 *
 * @example
 * ```ts
 * import { fenceRefusals } from "holdfast/fence";
 *
 * const { total, resources } = fenceRefusals();
 * if (total > 0) console.warn(`${total} stale writes were refused, the last on ${resources[0]!.resource}`);
 * ```
 */
export const fenceRefusals = (): FenceRefusals => ({
  total,
  resources: [...byResource.values()].reverse(),
});
