import { sql } from "drizzle-orm";
import type { NodePgDatabase } from "drizzle-orm/node-postgres";
import type { PostgresTx } from "../../src/fence/postgres.js";

/** A transaction of Drizzle as a `tx`, as docs/fences.md has it. */
export const txOf = (trx: Pick<NodePgDatabase, "execute">): PostgresTx => ({
  query(statement, values = []) {
    const parts = statement.split(/\$(\d+)/).map((part, i) =>
      // Every second part is the number of a value.
      i % 2 ? sql`${values[Number(part) - 1]}` : sql.raw(part),
    );
    return trx.execute(sql.join(parts));
  },
});
