import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";

const root = fileURLToPath(new URL("..", import.meta.url));
const text = (path: string): string => readFileSync(join(root, path), "utf8");
const files = (folder: string, ending: string): string[] =>
  readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((path) => path.endsWith(ending) && !path.includes("node_modules"))
    .map((path) => join(folder, path));

const manifest = JSON.parse(text("package.json")) as {
  exports: Record<string, string>;
  dependencies?: object;
  optionalDependencies?: object;
  peerDependencies: Record<string, string>;
  peerDependenciesMeta: Record<string, { optional?: boolean }>;
};

/** Parts that all stores, or all fences, share. */
const NO_SUBPATH = ["rule", "records-rule", "kind", "registry", "shared", "url", "fence", "index"];

test("every export is a built file with types, and every store and fence has its subpath", () => {
  for (const target of Object.values(manifest.exports)) {
    expect(existsSync(join(root, target)), target).toBe(true);
    if (target.endsWith(".js")) {
      expect(existsSync(join(root, target.replace(/js$/, "d.ts"))), target).toBe(true);
    }
  }
  for (const kind of ["stores", "fence"]) {
    for (const entry of readdirSync(join(root, "src", kind))) {
      const name = entry.replace(/\.ts$/, "");
      if (NO_SUBPATH.includes(name)) continue;
      expect(manifest.exports, `./${kind}/${name}`).toHaveProperty([`./${kind}/${name}`]);
    }
  }
});

test("an installation brings no other package: every client library is an optional peer of any version", () => {
  expect(manifest.dependencies ?? {}).toEqual({});
  expect(manifest.optionalDependencies ?? {}).toEqual({});
  for (const [name, range] of Object.entries(manifest.peerDependencies)) {
    expect([range, manifest.peerDependenciesMeta[name]]).toEqual(["*", { optional: true }]);
  }
});

test("the library prints nothing, and imports nothing but Node", () => {
  // A worker is a program of its own: its output is a protocol, and it opens clients as applications do.
  const workers = ["worker-process.ts", "connections.ts"].map((one) => `src/verify/traffic/${one}`);
  // Texts of programs, for users to paste.
  const texts = ["code.ts", "fence-code.ts"].map((one) => `src/advise/${one}`);
  // A program that imports holdfast/otel has the API of OpenTelemetry.
  const withOtel = ["otel.ts", "spans.ts"].map((one) => join("src/observe", one));
  const own = files("src", ".ts").filter(
    (path) => !path.startsWith("src/cli") && ![...workers, ...texts].includes(path),
  );
  for (const path of own) {
    // Examples in doc comments are programs of users.
    const code = text(path).replaceAll(/\/\*\*.*?\*\//gs, "");
    expect(code, path).not.toMatch(/console\.|process\.std(out|err)/);
    for (const [, from] of code.matchAll(/(?:from|import\() ?"([^"]+)"/g)) {
      if (from === "@opentelemetry/api" && withOtel.includes(path)) continue;
      expect(from, path).toMatch(/^(node:|\.{1,2}\/)/);
    }
  }
});

test("importing the package loads no store, no driver and no dependency", () => {
  const code = `await import("holdfast");
    process.stdout.write(JSON.stringify(process.moduleLoadList.length > 0));`;
  const loaded = execFileSync(
    process.execPath,
    ["--input-type=module", "--experimental-loader", tracer(), "-e", code],
    { cwd: root, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] },
  );
  expect(loaded).not.toMatch(/node:sqlite|node_modules/);
  const stores = [...loaded.matchAll(/dist\/stores\/(\S+)\.js/g)].map(([, path]) => path!);
  // The registry knows each store by its kind, which loads the store when it is opened.
  expect(stores).toContain("redis/kind");
  expect(stores.filter((path) => !/^(registry|url|shared\/.*|\w+\/kind)$/.test(path))).toEqual([]);
  expect(loaded).toMatch(/dist\/locks/);
});

/** A loader that prints what is loaded. */
function tracer(): string {
  const code = `import { writeSync } from "node:fs";
    export async function load(url, context, next) { writeSync(1, url + "\\n"); return next(url, context); }`;
  return `data:text/javascript,${encodeURIComponent(code)}`;
}

test("no source file has more than 400 lines", () => {
  for (const path of [".ts", ".lua", ".sql"].flatMap((ending) => files("src", ending))) {
    // Written by scripts/embed-scripts.mjs from the files beside them.
    if (/\/(lua|sql)\.ts$/.test(path) && text(path).startsWith("// Written by")) continue;
    expect(text(path).split("\n").length - 1, path).toBeLessThanOrEqual(400);
  }
});

test("random tests draw from a fixed seed", () => {
  for (const path of files("test", ".test.ts")) {
    const code = text(path);
    const drawn = code.match(/\b(fc\.(assert|check)|compareWithRule)\(/g)?.length ?? 0;
    const seeded = code.match(/\b(runs|ruleRuns)\(|\bRUNS,|seed: \d/g)?.length ?? 0;
    expect(seeded, path).toBeGreaterThanOrEqual(drawn);
    if (path !== join("test", "repository.test.ts")) expect(code, path).not.toMatch(/randomInt\(/);
  }
});

test("no file has the marks of a merge that was not finished", () => {
  const folders = ["docs", "src", "test", "bench", "scripts", "monitoring", "examples", "spec"];
  const endings = [".md", ".ts", ".mjs", ".lua", ".sql", ".json", ".yml", ".pml"];
  const pages = readdirSync(root).filter((path) => path.endsWith(".md"));
  const all = folders.flatMap((folder) => endings.flatMap((ending) => files(folder, ending)));
  for (const path of [...pages, ...all]) expect(text(path), path).not.toMatch(/^(<{7}|>{7}) /m);
});

test("no document has a placeholder in place of a figure or a sentence", () => {
  for (const path of ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", ...files("docs", ".md")]) {
    expect(text(path), path).not.toMatch(/\b(BENCH|TODO|TBD|FIXME)\b/);
  }
});

test("no sentence of a comment or a document begins with a bare Who, Whoever, What or Of", () => {
  const sentences = (prose: string): string[] => prose.split(/(?<=[.!?:;])[*_]* +(?=[A-Z])/);
  const isBare = (one: string): boolean => /^(Who|Whoever|What|Of)\b(?!.*\?)/.test(one);
  const found: string[] = [];
  const check = (path: string, prose: string): void => {
    for (const one of sentences(prose).filter(isBare)) found.push(`${path}: ${one.slice(0, 80)}`);
  };
  const folders = ["src", "test", "bench", "scripts", "examples", "spec"];
  const endings = [".ts", ".mjs", ".lua", ".sql", ".pml"];
  for (const path of folders.flatMap((folder) => endings.flatMap((end) => files(folder, end)))) {
    // A block, or a run of lines, that holds nothing but a comment.
    const comments = text(path).matchAll(/\/\*.*?\*\/|(?:^[ \t]*(?:\/\/|--) .*\n)+/gms);
    for (const [comment] of comments) {
      check(path, comment.replaceAll(/^\s*(\/\*+|\*\/?|\/\/|--) ?/gm, "").replaceAll(/\s+/g, " "));
    }
  }
  const pages = readdirSync(root).filter((path) => path.endsWith(".md"));
  for (const path of [...pages, ...files("docs", ".md")]) {
    const prose = text(path).replaceAll(/^```.*?^```/gms, "");
    // A heading or a bold question may ask; a line that ends in a colon leads to a list.
    for (const line of prose.split("\n")) {
      if (!/^#|:$/.test(line)) check(path, line.replace(/^[\s>*_-]*|^\d+\. /, ""));
    }
  }
  expect(found).toEqual([]);
});

test("links between the documents lead somewhere", () => {
  const pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
  for (const path of [...pages, ...files("docs", ".md")]) {
    for (const [, target] of text(path).matchAll(/\]\(([^)#:]+)\)/g)) {
      expect(existsSync(join(root, path, "..", target!)), `${path} → ${target}`).toBe(true);
    }
  }
});

test("the files that ARCHITECTURE.md names are there", () => {
  const all = ["src", "test", "scripts"].flatMap((folder) => files(folder, ""));
  for (const [, path] of text("ARCHITECTURE.md").matchAll(/`([\w./-]+\.(?:ts|mjs|lua|sql))`/g)) {
    expect(
      all.some((one) => `/${one}`.endsWith(`/${path}`)),
      path,
    ).toBe(true);
  }
});

test("every page in docs is linked from the README", () => {
  const readme = text("README.md");
  for (const path of files("docs", ".md")) expect(readme).toContain(`(${path})`);
});

test("lockfiles hold no addresses", () => {
  for (const path of ["package-lock.json", "bench/package-lock.json"]) {
    expect(text(path)).not.toMatch(/"resolved"/);
  }
});

/** The `ts` blocks of the documents, complete programs all of them. */
const programs = ["README.md", ...files("docs", ".md")].flatMap((path) =>
  [...text(path).matchAll(/^```ts\n(.*?)^```/gms)].map(([, code], i) => ({
    name: `${path.replaceAll(/[^a-z]+/gi, "-")}-${i + 1}`,
    code: code!,
  })),
);

describe("the documents' examples", () => {
  // Inside the project, so that "holdfast" is this package by its own exports.
  const folder = join(root, ".examples");
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  test("are type-checked", { timeout: 120_000 }, () => {
    expect(programs.length).toBeGreaterThan(8);
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder);
    for (const { name, code } of programs) {
      writeFileSync(join(folder, `${name}.ts`), `export {};\n${code}`);
    }
    const config = {
      extends: "../tsconfig.json",
      compilerOptions: { noEmit: false, outDir: "out", rootDir: "." },
      include: ["*.ts"],
    };
    writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(config));
    execFileSync(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", folder]);
  });

  // A test for each, so that a busy machine has the whole time for every one of them.
  test.each(programs)("$name runs", { timeout: 120_000 }, ({ name }) => {
    execFileSync(process.execPath, [join(folder, "out", `${name}.js`)], {
      cwd: folder,
      // Their files go with the folder.
      env: { ...process.env, TMPDIR: folder },
      timeout: 60_000,
    });
  });
});
