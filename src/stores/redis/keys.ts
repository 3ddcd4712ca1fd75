/** Before every key and channel: lock names never collide with data, and an ACL can name it. */
export const PREFIX = "holdfast:";

/** Names share so many slots of a cluster, and counters of tokens. */
const BUCKETS = 256;

/** The hash tag in front decides the slot; what follows may be any name. */
export const tagOf = (name: string): string => `${PREFIX}{${bucketOf(name)}}`;

/** Of a name, as the scripts take them: its front, its queue, and the counter of tokens beside them. */
export function keysOf(name: string): readonly [front: string, queue: string, counter: string] {
  const tag = tagOf(name);
  return [`${tag}n:${name}`, `${tag}q:${name}`, `${tag}last`];
}

export const keyOf = (name: string): string => keysOf(name)[0];

export const isQueue = (key: string): boolean => {
  const name = key.slice(key.indexOf("}q:") + 3);
  return key.includes("}q:") && keysOf(name)[1] === key;
};

export const counterOf = (name: string): string => keysOf(name)[2];

export const nameOfKey = (key: string): string => key.slice(key.indexOf("}n:") + 3);

/** FNV-1a over UTF-16 units: any spread will do, as long as it stays the same for ever. */
function bucketOf(name: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) {
    hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  }
  return (hash >>> 0) % BUCKETS;
}

/** Matches nothing but this text. */
export const escapePattern = (text: string): string => text.replaceAll(/[*?[\]\\]/g, "\\$&");

/** Of all names that begin so. */
export const patternOf = (prefix: string): string => `${PREFIX}{*}n:${escapePattern(prefix)}*`;
