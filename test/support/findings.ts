import { expect } from "vitest";
import type { Finding, Level } from "../../src/doctor/finding.js";

/** The subjects of the findings of a level. */
export const ofLevel = (findings: readonly Finding[], level: Level): string[] =>
  findings.filter((one) => one.level === level).map(({ about }) => about);

/** The only finding about a subject. */
export function one(findings: readonly Finding[], about: string): Finding {
  const found = findings.filter((finding) => finding.about === about);
  expect(found.length, JSON.stringify(findings, null, 2)).toBe(1);
  return found[0]!;
}
