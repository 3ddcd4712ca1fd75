import { InvalidArgumentError } from "../../core/errors.js";
import type { Traits } from "../../core/store.js";
import { type Target, targetOf } from "../redis/target.js";
import { switchedTlsOf } from "../shared/tls.js";
import { addressOf, type StoreUrl } from "../url.js";
import { checkNodeCount, parseMaxTtl, QUORUM_TRAITS } from "./options.js";

/** One node of a redlock: URL. */
export interface NodeTarget extends Target {
  /** The URL of this node alone: its error messages name no other. */
  readonly url: StoreUrl;
  /** `host:port` */
  readonly address: string;
}

/** The nodes of a URL. Throws InvalidArgumentError if they make no quorum, or an option is wrong. */
export function nodesOf(url: StoreUrl): NodeTarget[] {
  checkNodeCount(
    url.hosts.length,
    "a redlock: URL names its servers, as in redlock://a:6379,b:6379,c:6379",
  );
  const tls = switchedTlsOf(url);
  const nodes = url.hosts.map((host) => {
    const alone = { ...url, hosts: [host] };
    const target = targetOf({ ...alone, options: new Map() });
    const { host: name, port } = target.hosts[0]!;
    return { ...target, tls, url: alone, address: addressOf(name.toLowerCase(), port) };
  });
  const addresses = nodes.map(({ address }) => address);
  const twice = addresses.find((one, i) => addresses.indexOf(one) !== i);
  if (twice === undefined) return nodes;
  throw new InvalidArgumentError(
    `the redlock: URL names ${twice} twice: a quorum needs independent servers`,
  );
}

/** In ms. */
export const maxTtlOf = ({ options }: StoreUrl): number => parseMaxTtl(options.get("maxTtl"));

/** The traits of the store behind a URL. */
export function traitsOf(url: StoreUrl): Traits {
  nodesOf(url);
  return { ...QUORUM_TRAITS, maxTtlMs: maxTtlOf(url) };
}
