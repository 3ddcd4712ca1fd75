import { describePostgresConformance } from "./postgres-cases.js";

describePostgresConformance("short");
