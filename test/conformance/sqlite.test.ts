import { describeConformance, NEEDS_VIRTUAL_TIME, sqliteSubject } from "./subjects.js";

describeConformance("SQLite", sqliteSubject, NEEDS_VIRTUAL_TIME);
