import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const SRC = fileURLToPath(new URL("../src", import.meta.url));

/** From top to bottom. A file may import from its own layer and from those below. */
const LAYERS: readonly (readonly string[])[] = [
  ["cli/"],
  ["advise/"],
  ["verify/"],
  // The entry point of holdfast/testing offers the conformance suite too.
  ["testing.ts"],
  ["conformance/"],
  ["testing/"],
  ["lockfree/"],
  ["index.ts", "connect.ts", "examine.ts", "fences.ts", "locks.ts"],
  ["primitives/"],
  ["fence/"],
  ["postgres/", "zookeeper/"],
  ["stores/"],
  ["doctor/", "observe/"],
  ["core/"],
];

type Graph = ReadonlyMap<string, ReadonlySet<string>>;

/** Each file with the files that it imports, types and `import()` included; paths below `src`. */
const imports: Graph = new Map(
  readdirSync(SRC, { recursive: true, encoding: "utf8" })
    .filter((path) => path.endsWith(".ts"))
    .sort()
    .map((path) => {
      const code = readFileSync(join(SRC, path), "utf8");
      const specifiers = code.matchAll(/(?:\bfrom|\bimport)\s*\(?\s*"(\.[^"]+)"/g);
      const targets = [...specifiers].map(([, specifier]) =>
        join(dirname(path), specifier!).replace(/\.js$/, ".ts"),
      );
      return [path, new Set(targets)] as const;
    }),
);

const layerOf = (path: string): number =>
  LAYERS.findIndex((layer) =>
    layer.some((place) => (place.endsWith("/") ? path.startsWith(place) : path === place)),
  );

test("every file belongs to a layer, and every import leads to a file", () => {
  expect(imports.size).toBeGreaterThan(200);
  for (const [path, targets] of imports) {
    expect(layerOf(path), path).not.toBe(-1);
    for (const target of targets)
      expect(imports, `${path} → ${target}`).toSatisfy((all: typeof imports) => all.has(target));
  }
});

test("the drawing in ARCHITECTURE.md has every layer, in this order", () => {
  const page = readFileSync(join(SRC, "../ARCHITECTURE.md"), "utf8");
  const [, drawing] = /^## Layers\n```\n(.*?)^```/ms.exec(page)!;
  const places = LAYERS.flat().map(
    (place) => [place, drawing!.search(`\\b${place}( |,)`)] as const,
  );
  expect(places.filter(([, at]) => at === -1)).toEqual([]);
  expect(places.toSorted(([, a], [, b]) => a - b)).toEqual(places);
});

test("imports go downwards only", () => {
  const upward = [...imports].flatMap(([path, targets]) =>
    [...targets]
      .filter((target) => layerOf(target) < layerOf(path))
      .map((target) => `${path} → ${target}`),
  );
  expect(upward).toEqual([]);
});

test("a store loads no doctor with its protocol: the kinds of stores load doctors, when one is called", () => {
  const isDoctor = (path: string): boolean => /^stores\/\w+\/doctor(\/|\.ts$)/.test(path);
  expect([...imports.keys()].filter(isDoctor).length).toBeGreaterThan(10);
  const loading = [...imports]
    .filter(([path]) => !isDoctor(path) && !path.endsWith("/kind.ts"))
    .flatMap(([path, targets]) => [...targets].filter(isDoctor).map((to) => `${path} → ${to}`));
  expect(loading).toEqual([]);
});

test("no files import each other in a circle", () => {
  expect(circlesIn(imports)).toEqual([]);
});

test("no folders import each other in a circle", () => {
  const folders = new Map<string, Set<string>>();
  for (const [path, targets] of imports) {
    const from = folderOf(path);
    const to = folders.get(from) ?? new Set();
    for (const target of targets) to.add(folderOf(target));
    folders.set(from, to);
  }
  expect(circlesIn(folders)).toEqual([]);
});

/** Each store and each part of the verifier is a folder of its own. A file beside folders is itself. */
function folderOf(path: string): string {
  const [first, second, ...rest] = path.split("/");
  if (second === undefined) return first!;
  if (first !== "stores" && first !== "verify") return first!;
  return rest.length === 0 ? path : `${first}/${second}`;
}

/** The sets of nodes that reach each other, each as one sorted text (Tarjan's algorithm). */
function circlesIn(graph: Graph): string[] {
  const found: string[] = [];
  const numbers = new Map<string, number>();
  const stack: string[] = [];
  const lowest = (path: string): number => {
    const number = numbers.size;
    numbers.set(path, number);
    const at = stack.push(path) - 1;
    let low = number;
    for (const target of graph.get(path) ?? []) {
      if (!numbers.has(target)) low = Math.min(low, lowest(target));
      else if (stack.includes(target)) low = Math.min(low, numbers.get(target)!);
    }
    if (low === number) {
      const circle = stack.splice(at);
      if (circle.length > 1) found.push(circle.sort().join(" "));
    }
    return low;
  };
  for (const path of graph.keys()) if (!numbers.has(path)) lowest(path);
  return found.sort();
}
