import { danger, type Finding, note, ok } from "../../../doctor/finding.js";
import { megabytes } from "../../../doctor/measures.js";
import { FORMAT } from "../schema.js";
import type { Facts, TableFacts } from "./facts.js";

/** Autovacuum begins at a fifth of the rows; a hot name leaves some thousands between two runs. */
const MANY_DEAD = 50_000;
const DEAD_PER_LIVE = 2;

const SET_UP =
  "holdfast setup --store URL --grant USER, run by the owner of the database or of the tables, makes them.";

/** Whether the tables are there, and fit this version. */
export function judgeTables(facts: Facts, schema: string): Finding {
  const { user, database } = facts;
  const format = facts.schema?.format ?? null;
  if (format === FORMAT) {
    if (facts.schema!.hasFunctions) {
      return ok("tables", `format ${format}, in the schema ${schema}`);
    }
    const missing = `the schema ${schema} has only functions of another version of Holdfast`;
    if (facts.schema!.mayAddFunctions) {
      return note(
        "tables",
        `${missing}: the first lock adds those of this one, and ${user} will own them. So the trial was left out`,
      );
    }
    return danger(
      "tables",
      `${missing}, and ${user} may not add those of this one: nothing can be locked`,
      SET_UP,
    );
  }
  if (format !== null) {
    return danger(
      "tables",
      `the schema ${schema} has format ${format}, and this version of Holdfast knows ${FORMAT}: nothing can be locked`,
      "Use the version of Holdfast that made the schema, or another schema (?schema=NAME).",
    );
  }
  if (facts.schema?.mayCreateTables ?? facts.mayCreateSchema) {
    return note(
      "tables",
      `they are not there yet: the first lock makes them in the schema ${schema}, and ${user} will own them. So the trial was left out`,
    );
  }
  return danger(
    "tables",
    `they are not there, and ${user} may not make them in the schema ${schema} of the database ${database}: nothing can be locked`,
    SET_UP,
  );
}

/** How large the tables are, and whether the server cleans them up. */
export function judgeSize(tables: readonly TableFacts[], autovacuum: string): Finding {
  const text = tables
    .map(({ name, bytes, liveRows, deadRows }) => {
      return `${name} ${megabytes(bytes)} (rows: ${liveRows}, dead: ${deadRows})`;
    })
    .join(", ");
  const unvacuumed = tables.filter(({ isVacuumed }) => !isVacuumed).map(({ name }) => name);
  if (autovacuum === "off" || unvacuumed.length > 0) {
    const where = autovacuum === "off" ? "" : ` for ${unvacuumed.join(", ")}`;
    return note(
      "size",
      `${text}. autovacuum is off${where}: dead rows pile up, and names that are locked often become slower`,
      "Turn autovacuum on, or run VACUUM on these tables often.",
    );
  }
  const isFullOfDead = ({ liveRows, deadRows }: TableFacts): boolean =>
    deadRows > Math.max(MANY_DEAD, DEAD_PER_LIVE * liveRows);
  if (!tables.some(isFullOfDead)) return ok("size", text);
  return note(
    "size",
    `${text}: so many dead rows make names that are locked often slower`,
    "End the transactions that have been open for long, then run VACUUM on these tables; let autovacuum run more often.",
  );
}
