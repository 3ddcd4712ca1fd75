import { userInfo } from "node:os";
import { checkName } from "../core/validate.js";
import { Exit, usage } from "./exit.js";
import { holderLabel } from "./holder.js";
import type { Options } from "./options.js";
import { formatMs, print, printable, quoted } from "./output.js";
import { inNamespace, withLocks } from "./store.js";

export async function release(name: string, options: Options): Promise<number> {
  checkName(name);
  const why = options.why ?? "holdfast release --force";
  if (!options.force) {
    throw usage(
      `release takes ${quoted(name)} from its holder, which may still be at work, and the next waiter gets it at once; ` +
        "the holder learns of it only at its next renewal. Add --force if that is what you want",
    );
  }
  const by = holderLabel(userName(), "the user");
  const lost = await withLocks(options, (locks) => locks.forceRelease(name, { why }), [], by);
  if (lost.length === 0) print(`Nobody held ${quoted(name)} ${inNamespace(options)}.`);
  for (const one of lost) {
    const [holder, heldFor] = [printable(one.holder), formatMs(one.heldMs)];
    print(
      one.closed
        ? `Opened ${quoted(name)}, which ${holder} had closed (token ${one.token}, begun ${heldFor} ago).`
        : `Took ${quoted(name)} from ${holder} (token ${one.token}, held for ${heldFor}).`,
    );
  }
  if (lost.length > 0) print(`Recorded: by ${printable(by)}: ${printable(why)}`);
  return Exit.ok;
}

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    // The user's id has no entry in the list of users, as in many containers.
    return `uid ${process.getuid?.() ?? "unknown"}`;
  }
}
