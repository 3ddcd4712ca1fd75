/** Every key and channel begins with it, so that names never collide with other data, and an ACL can name them. */
export const PREFIX = "holdfast:";

/** The default prefix of the keys of a fence, whose data may be on this server too. */
export const FENCE_PREFIX = `${PREFIX}fence:`;

/** Names share this many slots of a cluster, and as many token counters. */
export const BUCKETS = 256;

/** The beginning of all keys of a name. The hash tag in braces decides the slot; any name may follow it. */
const tagOf = (name: string): string => `${PREFIX}{${bucketOf(name)}}`;

/** The keys of a name, as the scripts take them; many names share a token counter. */
export function keysOf(name: string): readonly [state: string, queue: string, counter: string] {
  const tag = tagOf(name);
  return [`${tag}n:${name}`, `${tag}q:${name}`, `${tag}last`];
}

export const keyOf = (name: string): string => keysOf(name)[0];

export const recordKeyOf = (key: string): string => `${tagOf(key)}r:${key}`;

export const meterKeyOf = (key: string): string => `${tagOf(key)}m:${key}`;

/** Whether it is the key of a queue, a record or a meter. */
export const isBesideNames = (key: string): boolean => {
  const [, kind, name] = /^[^}]*\}([qrm]):(.*)$/s.exec(key) ?? [];
  return kind !== undefined && `${tagOf(name!)}${kind}:${name}` === key;
};

export const counterOf = (name: string): string => keysOf(name)[2];

export const nameOfKey = (key: string): string => key.slice(key.indexOf("}n:") + 3);

/** FNV-1a over UTF-16 units. Any even hash would do, but it must never change. */
export function bucketOf(name: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) {
    hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  }
  return (hash >>> 0) % BUCKETS;
}

/** A pattern that matches this text alone. */
export const escapePattern = (text: string): string => text.replaceAll(/[*?[\]\\]/g, "\\$&");

/** Matches the state keys of all names with this prefix, and some others. */
export const patternOf = (prefix: string): string => `${PREFIX}{*}n:${escapePattern(prefix)}*`;
