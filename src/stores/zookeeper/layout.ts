import type { ClaimMode } from "../../core/store.js";

/** The node that holds everything, unless the URL names another. */
export const ROOT = "/holdfast";

/** Raised when an older Holdfast could misread what is kept. */
export const FORMAT = 1;

/** A node below a name's container, as its path tells. */
export interface ClaimNode {
  readonly node: string;
  readonly grantId: string;
  readonly permits: number;
  readonly limit: number;
  /** The number that the server appended: the order of creation within a container. */
  readonly place: number;
}

const CLAIM = /^(\d{1,10})\.(\d{1,10})\.([esp])\.([\w!~*'()%.-]+)-(-?\d{9,10})$/;
const BARRIER = /^barrier-(-?\d{9,10})$/;
const MODES: Readonly<Record<ClaimMode, string>> = { exclusive: "e", shared: "s", permits: "p" };

/**
 * The nodes below the root, which holds the format:
 *   names/NAME                                  a container; its data is the last resize, if there was one
 *   names/NAME/PERMITS.LIMIT.MODE.GRANT_ID-SEQ  a claim, ephemeral; the order of creation is the queue
 *   names/NAME/barrier-SEQ                      claims behind it wait until a resize is done, ephemeral
 *   sessions/ID                                 a session, ephemeral; its version counts revocations
 *   revoked/NAME                                the last forced releases of the name
 */
export class Layout {
  readonly root: string;
  readonly names: string;
  readonly sessions: string;
  readonly revoked: string;

  constructor(root = ROOT) {
    this.root = root;
    const base = root === "/" ? "" : root;
    this.names = `${base}/names`;
    this.sessions = `${base}/sessions`;
    this.revoked = `${base}/revoked`;
  }

  name(name: string): string {
    return `${this.names}/${encodeName(name)}`;
  }

  /** Without the number that the server appends. */
  claim(
    name: string,
    claim: { permits: number; limit: number; grantId: string },
    mode: ClaimMode,
  ): string {
    const { permits, limit, grantId } = claim;
    return `${this.name(name)}/${permits}.${limit}.${MODES[mode]}.${encodeName(grantId)}-`;
  }

  barrier(name: string): string {
    return `${this.name(name)}/barrier-`;
  }

  session(id: bigint): string {
    return `${this.sessions}/${BigInt.asUintN(64, id).toString(16)}`;
  }

  revocations(name: string): string {
    return `${this.revoked}/${encodeName(name)}`;
  }

  /** The name, and the node below its container, of a path below `names`; null if it is something else. */
  read(path: string): { name: string; node: string } | null {
    if (!path.startsWith(`${this.names}/`)) return null;
    const [encoded = "", node = ""] = path.slice(this.names.length + 1).split("/");
    const name = decodeName(encoded);
    return name === null ? null : { name, node };
  }
}

/** Reads the name of a node in a container; null if it is no claim. */
export function readClaim(node: string): ClaimNode | null {
  const match = CLAIM.exec(node);
  const grantId = match === null ? null : decodeName(match[4]!);
  if (match === null || grantId === null) return null;
  return {
    node,
    grantId,
    permits: Number(match[1]),
    limit: Number(match[2]),
    place: Number(match[5]),
  };
}

/** The place of a barrier; null if the node is none. */
export function readBarrier(node: string): number | null {
  if (!node.startsWith("barrier-")) return null;
  const match = BARRIER.exec(node);
  return match === null ? null : Number(match[1]);
}

/** Negative if the first was created before the second. The server's counter wraps around at 2^31. */
export const comparePlaces = (one: number, two: number): number => (one - two) | 0;

/** ZooKeeper refuses "/", "." and "..", and many characters beyond ASCII. */
export function encodeName(name: string): string {
  const encoded = encodeURIComponent(name);
  return encoded.startsWith(".") ? `%2E${encoded.slice(1)}` : encoded;
}

export function decodeName(encoded: string): string | null {
  try {
    return decodeURIComponent(encoded);
  } catch {
    return null;
  }
}
