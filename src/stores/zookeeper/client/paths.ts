import { InvalidArgumentError } from "../../../core/errors.js";
import { show } from "../../../core/validate.js";
import { MalformedReply } from "./jute.js";

/** Characters that ZooKeeper refuses in a path: controls, surrogates, private use and specials. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is refused
const REFUSED = /[\u0000-\u001f\u007f-\u009f\ud800-\uf8ff\ufff0-\uffff]/;

/** A name that is empty, "." or "..". */
const NO_NAME = /\/\.{0,2}(?:\/|$)/;

/** Far below the longest request, in which a path is sent together with others to be watched again. */
const MAX_LENGTH = 65_535;

/** Throws `InvalidArgumentError` unless a server would accept the path. */
export function checkPath(path: unknown, what: string): string {
  if (
    typeof path !== "string" ||
    path.length > MAX_LENGTH ||
    !path.startsWith("/") ||
    REFUSED.test(path) ||
    (path !== "/" && NO_NAME.test(path))
  ) {
    throw new InvalidArgumentError(
      `${what} is ${show(path)}; it must begin with "/", not end with it, and have no empty part, no "." or "..", ` +
        `no control character, no character beyond U+FFFF, and ${MAX_LENGTH} characters at most`,
    );
  }
  return path;
}

/** The part of the tree that a client sees: it adds the chroot to paths, and takes it from those of the server. */
export class Chroot {
  /** Empty if the client sees the whole tree. */
  readonly #prefix: string;

  constructor(root: unknown = "/") {
    const checked = checkPath(root, "chroot");
    this.#prefix = checked === "/" ? "" : checked;
  }

  /** The path on the server. */
  absolute(path: unknown): string {
    const checked = checkPath(path, "the path");
    if (this.#prefix === "") return checked;
    return checked === "/" ? this.#prefix : this.#prefix + checked;
  }

  /** The same for a new sequential node, whose path may end with "/": the server appends digits. */
  absoluteSequential(path: unknown): string {
    const absolute = this.absolute(typeof path === "string" ? `${path}1` : path);
    return absolute.slice(0, -1);
  }

  /** The path as the client sees it. */
  relative(absolute: string): string {
    if (this.#prefix === "") return absolute;
    if (absolute === this.#prefix) return "/";
    if (absolute.startsWith(`${this.#prefix}/`)) return absolute.slice(this.#prefix.length);
    throw new MalformedReply("a path outside of the chroot");
  }
}
