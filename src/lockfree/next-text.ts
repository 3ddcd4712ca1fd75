import { InvalidArgumentError } from "../core/errors.js";
import { show } from "../core/validate.js";

/** Checks the result of a change of a text. */
export function checkNext(next: unknown): string {
  // Half a character could not be written as it is.
  if (typeof next === "string" && next.isWellFormed()) return next;
  throw new InvalidArgumentError(
    `change returned ${show(next)}; it must return the new text, well-formed`,
  );
}
