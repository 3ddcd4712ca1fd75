import { defaultHolder, HOLDER_BYTES } from "../core/settings.js";
import { checkText } from "../core/validate.js";

/** The label of this process, with a note. `what` names the note in messages. */
export function holderLabel(note: string | undefined, what: string): string {
  const label = defaultHolder(1);
  if (note === undefined) return label;
  const roomBytes = HOLDER_BYTES - Buffer.byteLength(`${label} ()`);
  return `${label} (${checkText(note, what, 1, roomBytes)})`;
}
