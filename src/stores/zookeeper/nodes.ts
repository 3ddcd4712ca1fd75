import { isCode, isUnanswered } from "./errors.js";
import type { Link } from "./link.js";

const DELETE_ATTEMPTS = 3;

interface ClaimNode {
  readonly path: string;
  readonly link: Link;
  /** The transaction that created it, if that is known; otherwise 0. */
  readonly czxid: bigint;
}

/** The server appends a number to a claim's node: this table knows the paths of the claims of this store. */
export class Nodes {
  readonly #nodes = new Map<string, ClaimNode>();

  key(name: string, grantId: string): string {
    return `${name}\n${grantId}`;
  }

  add(key: string, path: string, link: Link, czxid = 0n): void {
    if (this.#nodes.get(key)?.path !== path) this.#nodes.set(key, { path, link, czxid });
  }

  /** The path of the claim's node, if it is under this session. */
  get(key: string, link: Link): ClaimNode | undefined {
    const there = this.#nodes.get(key);
    return there?.link === link ? there : undefined;
  }

  /** The claim is over. */
  forget(key: string): void {
    this.#nodes.delete(key);
  }

  /** Forgets the nodes of the session that had gone at this transaction. */
  keepOnly(link: Link, standing: ReadonlySet<string>, zxid: bigint): void {
    for (const [key, node] of this.#nodes) {
      const isGone = node.czxid <= zxid && !standing.has(node.path);
      if (node.link === link && isGone) this.#nodes.delete(key);
    }
  }

  /** The session is over. */
  forgetAll(link: Link): void {
    for (const [key, node] of this.#nodes) if (node.link === link) this.#nodes.delete(key);
  }

  /**
   * Deletes the claim's node. `unknown`: its path is not known here. `repeated`: an attempt without a reply may
   * have deleted what is missing now.
   */
  delete(key: string): Promise<"deleted" | "missing" | "repeated"> | "unknown" {
    const there = this.#nodes.get(key);
    if (there === undefined) return "unknown";
    return deleteNode(there.link, there.path).then((outcome) => {
      if (this.#nodes.get(key) === there) this.#nodes.delete(key);
      return outcome;
    });
  }
}

/** A session that is over has deleted the node, or will. */
export async function deleteNode(
  link: Link,
  path: string,
): Promise<"deleted" | "missing" | "repeated"> {
  for (let attempt = 1; ; attempt++) {
    try {
      await link.requests.delete(path);
      return "deleted";
    } catch (error) {
      const isMissing = isCode(error, "NO_NODE", "SESSION_EXPIRED", "CLOSED");
      if (isMissing) return attempt === 1 ? "missing" : "repeated";
      if (attempt === DELETE_ATTEMPTS || !isUnanswered(error)) throw error;
    }
  }
}
