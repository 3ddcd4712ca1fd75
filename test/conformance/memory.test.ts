import { describeConformance, memorySubject } from "./subjects.js";

describeConformance("memory", memorySubject);
