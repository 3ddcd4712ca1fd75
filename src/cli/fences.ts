import { listFences } from "../fences.js";
import { Exit } from "./exit.js";
import type { Options } from "./options.js";
import { formatMs, jsonText, note, print, printable, quoted, table } from "./output.js";
import { chooseStore, describeStore } from "./store.js";

const MOST = 1_000;
const HEADING = ["RESOURCE", "HIGHEST TOKEN", "LAST ENTERED"];

export async function fences(options: Options): Promise<number> {
  const { prefix = "", json } = options;
  const { url } = chooseStore(options);
  const found = await listFences(url, { prefix, limit: MOST });
  if (json) print(jsonText(found));
  else if (found.length === 0) {
    const under = prefix === "" ? "" : ` under ${quoted(prefix)}`;
    print(`No fence was entered${under} in ${describeStore(url)}.`);
  } else {
    const rows = found.map(({ resource, highest, enteredAtMs }) => [
      printable(resource),
      String(highest),
      enteredAtMs === null ? "not known" : `${formatMs(Math.max(0, Date.now() - enteredAtMs))} ago`,
    ]);
    print(table([HEADING, ...rows]));
  }
  if (found.length === MOST)
    note(`only the first ${MOST} resources are shown; use --prefix TEXT to see others`);
  return Exit.ok;
}
