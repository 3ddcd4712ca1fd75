import { kindOf, parseStoreUrl } from "../stores/registry.js";
import { Exit } from "./exit.js";
import type { Options } from "./options.js";
import { masked, note, print, quoted } from "./output.js";
import { defaultFile, describeStore, namedStore, sqliteUrl } from "./store.js";

export async function setup(options: Options): Promise<number> {
  const url = namedStore(options)?.url ?? sqliteUrl(defaultFile());
  const parsed = parseStoreUrl(url);
  const store = masked(describeStore(url));
  const { setup } = kindOf(parsed);
  if (setup === undefined) {
    const text = `${store} needs no set-up: the first lock makes whatever it needs.`;
    // Standard output is SQL, or empty.
    if (options.print) note(text);
    else print(text);
    return Exit.ok;
  }
  if (options.print) {
    print(await setup.sql(parsed, options.grant));
    return Exit.ok;
  }
  const { what, isMade } = await setup.run(parsed, options.grant);
  print(isMade ? `Made ${what} in ${store}.` : `Nothing to make: ${what} was in ${store} already.`);
  if (options.grant !== undefined) {
    print(`${quoted(options.grant)} has the rights that locks and fences need.`);
  }
  return Exit.ok;
}
