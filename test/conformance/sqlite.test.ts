import { describeConformance, sqliteSubject } from "./subjects.js";

describeConformance("SQLite", sqliteSubject, {
  "tokens rise though the store's wall clock is set back": "needs virtual time",
  "the wall clock decides nothing": "needs virtual time",
  "after a stalled event loop nothing counts as held": "needs virtual time",
  "where only the wall clock ran ahead, nothing is proved until a renewal is answered":
    "needs virtual time",
});
