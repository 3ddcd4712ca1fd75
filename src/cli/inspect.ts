import { LOCK_LIMIT, type NameInfo } from "../core/store.js";
import { checkName } from "../core/validate.js";
import type { Options } from "./commands.js";
import { Exit } from "./exit.js";
import { CLOSED_BY, clockTime, modeText, nameAsJson } from "./names.js";
import { formatMs, print, printable, style } from "./output.js";
import { withLocks } from "./store.js";

export async function inspect(name: string, options: Options): Promise<number> {
  checkName(name);
  const found = await withLocks(options, (locks) => locks.inspect(name), null);
  const info = found ?? { name, limit: LOCK_LIMIT, holders: [], waiters: [], revoked: [] };
  print(options.json ? JSON.stringify(nameAsJson(info), null, 2) : describe(info));
  return Exit.ok;
}

function describe(info: NameInfo): string {
  const lines = [style(process.stdout, "bold", printable(info.name))];
  if (info.holders.length === 0) lines.push("  nobody holds it");
  for (const one of info.holders) {
    const since = `for ${formatMs(one.heldMs)}, since ${clockTime(Date.now() - one.heldMs)}`;
    lines.push(
      one.closed
        ? `  closed    by ${printable(one.holder)} ${CLOSED_BY}, ${since}`
        : `  held      by ${printable(one.holder)}, ${modeText(one, info.limit)}, ${since}`,
      `            token ${one.token}`,
      one.closed
        ? `            opens in ${formatMs(one.expiresInMs)}`
        : `            expires in ${formatMs(one.expiresInMs)} unless renewed`,
    );
  }
  info.waiters.forEach((one, at) => {
    lines.push(
      `  waiter ${String(at + 1).padEnd(2)} ${printable(one.holder)}, ${modeText(one, info.limit)}, for ${formatMs(one.waitingMs)}`,
    );
  });
  if (info.waiters.length === 0) lines.push("  nobody waits");
  for (const one of info.revoked) {
    const when = `${formatMs(one.agoMs)} ago, ${clockTime(Date.now() - one.agoMs)}`;
    lines.push(
      `  taken     from ${printable(one.holder)}, token ${one.token}, ${when}`,
      `            by ${printable(one.by)}: ${printable(one.why)}`,
    );
  }
  return lines.join("\n");
}
