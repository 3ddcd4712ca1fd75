import { accessSync, constants, existsSync, readdirSync, statSync } from "node:fs";
import { delimiter, join } from "node:path";

/** For each kind, what has to be found by its name, and the package of Debian and Ubuntu that brings it. */
const REQUIREMENTS = {
  redis: { "redis-server": "redis-server", "redis-cli": "redis-tools" },
  postgres: {
    postgres: "postgresql",
    initdb: "postgresql",
    psql: "postgresql",
    setpriv: "util-linux",
  },
  pgbouncer: { pgbouncer: "pgbouncer", psql: "postgresql" },
  etcd: { etcd: "etcd-server", etcdctl: "etcd-client" },
  zookeeper: { java: "default-jre-headless", "zookeeper.jar": "libzookeeper-java" },
  faketime: { "libfaketimeMT.so.1": "faketime" },
  network: { ip: "iproute2", nft: "nftables", nsenter: "util-linux" },
  tls: { openssl: "openssl" },
  disk: { "mkfs.ext4": "e2fsprogs", mount: "mount", losetup: "mount", perl: "perl-base" },
  browser: { chromium: "chromium" },
} as const satisfies Record<string, Readonly<Record<string, string>>>;

export type Kind = keyof typeof REQUIREMENTS;
export const KINDS = Object.keys(REQUIREMENTS) as readonly Kind[];

export type Find = (file: string) => string | null;

/** Which of these can't be had here, and what would help: a line to paste where one is known. */
export interface Missing {
  readonly kinds: readonly Kind[];
  readonly packages: readonly string[];
  readonly advice: string;
}

export const packagesOf = (kinds: readonly Kind[]): readonly string[] =>
  unique(kinds.flatMap((kind) => Object.values(REQUIREMENTS[kind])));

/** Null when nothing is. */
export function missing(kinds: readonly Kind[], find: Find = findFile): Missing | null {
  const files = (kind: Kind): [string, string][] =>
    Object.entries(REQUIREMENTS[kind]).filter(([file]) => find(file) === null);
  const lacking = kinds.filter((kind) => files(kind).length > 0);
  if (lacking.length === 0) return null;
  const packages = unique(lacking.flatMap(files).map(([, name]) => name));
  const names = unique(lacking.flatMap(files).map(([file]) => file));
  const advice = hasApt()
    ? `${isRoot() ? "" : "sudo "}apt-get install -y --no-install-recommends ${packages.join(" ")}`
    : `install what brings ${names.join(", ")}`;
  return { kinds: lacking, packages, advice };
}

/** The path of a file of some kind; throws with what to install. */
export function findProgram(file: string, find: Find = findFile): string {
  const path = find(file);
  if (path !== null) return path;
  const kind = KINDS.find((one) => file in REQUIREMENTS[one]);
  const advice = kind === undefined ? "" : ` (${missing([kind], find)?.advice})`;
  throw new Error(`${file} is not installed${advice}`);
}

export function findFile(file: string): string | null {
  const mode = /\.(jar|so)\b/.test(file) ? constants.R_OK : constants.X_OK;
  const found = foldersOf(file).find((folder) => isThere(join(folder, file), mode));
  return found === undefined ? null : join(found, file);
}

export const isRoot = (): boolean => process.getuid?.() === 0;
export const hasApt = (): boolean => existsSync("/usr/bin/apt-get") && existsSync("/etc/apt");

function foldersOf(file: string): readonly string[] {
  if (file.endsWith(".jar")) return ["/usr/share/java", "/usr/share/zookeeper"];
  if (file.includes(".so")) {
    return [`/usr/lib/${multiarch()}`, "/usr/lib64", "/usr/lib", "/usr/local/lib"].map((folder) =>
      join(folder, "faketime"),
    );
  }
  // Before PATH: there Debian has a script in Perl for psql, and nothing of the server.
  const postgres = "/usr/lib/postgresql";
  const versions = existsSync(postgres) ? readdirSync(postgres) : [];
  return [
    ...versions
      .sort((a, b) => Number(b) - Number(a))
      .map((version) => join(postgres, version, "bin")),
    ...(process.env["PATH"] ?? "").split(delimiter).filter((folder) => folder !== ""),
    // Not in everyone's PATH.
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
  ];
}

/** Debian's name of the folder for libraries of this architecture. */
function multiarch(): string {
  const names: Record<string, string> = {
    x64: "x86_64-linux-gnu",
    arm64: "aarch64-linux-gnu",
    arm: "arm-linux-gnueabihf",
    ia32: "i386-linux-gnu",
    ppc64: "powerpc64le-linux-gnu",
    loong64: "loongarch64-linux-gnu",
  };
  return names[process.arch] ?? `${process.arch}-linux-gnu`;
}

function isThere(path: string, mode: number): boolean {
  try {
    accessSync(path, mode);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

const unique = <T>(values: readonly T[]): readonly T[] => [...new Set(values)];
