import { hostname } from "node:os";
import { HOLDER_BYTES } from "../core/options.js";
import { checkText } from "../core/validate.js";

/** Who this process is to others, as the library would say it; `what` is what the note is called in a message. */
export function holderLabel(note: string | undefined, what: string): string {
  const label = `${hostname()}:${process.pid}`;
  if (note === undefined) return label;
  const roomBytes = HOLDER_BYTES - Buffer.byteLength(`${label} ()`);
  return `${label} (${checkText(note, what, 1, roomBytes)})`;
}
