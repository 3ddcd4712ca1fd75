import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";

/** Something that users can import, or a member of it. */
export interface Declared {
  /** `name`, or `name.member`. */
  readonly name: string;
  /** Where its source is, from the root of the project. */
  readonly source: string;
  /** Its doc comment without the asterisks; null if there is none. */
  readonly comment: string | null;
}

const DECLARATION =
  /^export (?:declare )?(?:abstract )?(class|interface|function|const|type|enum) (\w+)(.*)$/;
const REEXPORT = /^export (?:type )?\{([^}]*)\} from "([^"]+)"/gm;
const MEMBER =
  /^ {4}(?:static |readonly |abstract |get |set )*(?!private |protected |constructor)("[\w-]+"|\w+|\[Symbol\.\w+\])(?:\??[(<:]| =)/;

/** Reads the declarations that the compiler emits, one on each line, with their comments. */
export class Declarations {
  readonly #root: string;
  readonly #members = new Map<string, Set<string>>();

  constructor(root: string) {
    this.#root = root;
    const dist = join(root, "dist");
    for (const path of readdirSync(dist, { recursive: true, encoding: "utf8" })) {
      if (path.endsWith(".d.ts")) this.#indexMembers(readFileSync(join(dist, path), "utf8"));
    }
  }

  /** Everything that this entry point exports, and the members of exported classes and interfaces. */
  exportedBy(entry: string): readonly Declared[] {
    const path = join(this.#root, entry);
    const text = readFileSync(path, "utf8");
    const elsewhere = [...text.matchAll(REEXPORT)].flatMap(([, names, from]) => {
      const target = join(dirname(entry), from!.replace(/\.js$/, ".d.ts"));
      const wanted = names!.split(",").map((one) => one.replace(/^\s*type\s/, "").trim());
      const found = this.exportedBy(target);
      return found.filter(({ name }) => wanted.includes(name.split(".")[0]!));
    });
    return [...this.#declaredIn(path), ...elsewhere];
  }

  #declaredIn(path: string): readonly Declared[] {
    const lines = readFileSync(path, "utf8").split("\n");
    const source = relative(this.#root, path)
      .replace(/^dist/, "src")
      .replace(/\.d\.ts$/, ".ts");
    const seen = new Set<string>();
    return lines.flatMap((line, i): Declared[] => {
      const [, kind, name, rest] = DECLARATION.exec(line) ?? [];
      if (name === undefined || seen.has(name)) return [];
      seen.add(name);
      const one = { name, source, comment: commentBefore(lines, i) };
      if (kind !== "class" && kind !== "interface") return [one];
      // Editors show the comment of the contract for a member that implements it.
      const inherited = new Set(
        [...rest!.matchAll(/\w+/g)].flatMap(([base]) => [...(this.#members.get(base) ?? [])]),
      );
      const members = membersAt(lines, i).filter(({ name }) => !inherited.has(name));
      return [
        one,
        ...members.map((member) => ({
          name: `${name}.${member.name}`,
          source,
          comment: member.comment,
        })),
      ];
    });
  }

  #indexMembers(text: string): void {
    const lines = text.split("\n");
    for (const [i, line] of lines.entries()) {
      const [, , name] = /^(?:export )?(?:declare )?(interface|class) (\w+)/.exec(line) ?? [];
      if (name === undefined) continue;
      const known = this.#members.get(name) ?? new Set();
      for (const member of membersAt(lines, i)) known.add(member.name);
      this.#members.set(name, known);
    }
  }
}

/** The members of the class or interface that begins on this line; of overloads, the first. */
function membersAt(
  lines: readonly string[],
  start: number,
): { readonly name: string; readonly comment: string | null }[] {
  const members = new Map<string, string | null>();
  for (let i = start + 1; i < lines.length && lines[i] !== "}"; i++) {
    const [, name] = MEMBER.exec(lines[i]!) ?? [];
    if (name !== undefined && !members.has(name)) members.set(name, commentBefore(lines, i));
  }
  return [...members].map(([name, comment]) => ({ name, comment }));
}

function commentBefore(lines: readonly string[], index: number): string | null {
  if (!lines[index - 1]?.trimEnd().endsWith("*/")) return null;
  let start = index - 1;
  while (!lines[start]!.trimStart().startsWith("/**")) {
    if (start === 0 || lines[start]!.trimStart().startsWith("/*")) return null;
    start--;
  }
  return lines
    .slice(start, index)
    .map((line) => line.trim().replace(/^\/\*\*|\*\/$|^\*(?!\/) ?/g, ""))
    .join("\n")
    .replace(/\*\/$/, "")
    .trim();
}
