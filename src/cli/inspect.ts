import type { NameStatus } from "../core/name-status.js";
import { checkName } from "../core/validate.js";
import { Exit } from "./exit.js";
import { CLOSED_BY, clockTime, modeText } from "./names.js";
import type { Options } from "./options.js";
import { formatMs, jsonText, print, printable, style } from "./output.js";
import { inNamespace, withLocks } from "./store.js";

export async function inspect(name: string, options: Options): Promise<number> {
  checkName(name);
  const { found, isFair } = await withLocks(
    options,
    async (locks) => ({ found: await locks.inspect(name), isFair: locks.traits.fair }),
    { found: null, isFair: true },
  );
  const status = found ?? nobodyHolds(name);
  print(options.json ? jsonText(status) : describe(status, isFair, inNamespace(options)));
  return Exit.ok;
}

const nobodyHolds = (name: string): NameStatus => {
  return { name, limit: null, holders: [], waiting: 0, waiters: [], revoked: [] };
};

/** `knowsWaiters`: whether waiters have a place in the store. */
function describe(info: NameStatus, knowsWaiters: boolean, where: string): string {
  const lines = [style(process.stdout, "bold", printable(info.name))];
  if (info.holders.length === 0) lines.push(`  nobody holds it ${where}`);
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
  const more = info.waiting - info.waiters.length;
  if (more > 0) lines.push(`  and ${more} more waiters behind them`);
  if (!knowsWaiters) lines.push("  waiters   are not known to this store");
  else if (info.waiting === 0) lines.push("  nobody waits");
  for (const one of info.revoked) {
    const when = `${formatMs(one.agoMs)} ago, ${clockTime(Date.now() - one.agoMs)}`;
    lines.push(
      `  taken     from ${printable(one.holder)}, token ${one.token}, ${when}`,
      `            by ${printable(one.by)}: ${printable(one.why)}`,
    );
  }
  for (const one of info.notes ?? []) lines.push(`  note      ${printable(one)}`);
  return lines.join("\n");
}
