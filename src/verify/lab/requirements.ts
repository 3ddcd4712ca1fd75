import { accessSync, constants, existsSync, readdirSync, statSync } from "node:fs";
import { delimiter, join } from "node:path";

/** For each kind, the files that must be found, and the package of Debian and Ubuntu that has them. */
const REQUIREMENTS = {
  redis: { "redis-server": "redis-server", "redis-cli": "redis-tools" },
  postgres: {
    postgres: "postgresql",
    initdb: "postgresql",
    pg_basebackup: "postgresql",
    psql: "postgresql",
    setpriv: "util-linux",
  },
  pgbouncer: { pgbouncer: "pgbouncer", psql: "postgresql" },
  etcd: { etcd: "etcd-server", etcdctl: "etcd-client" },
  zookeeper: { java: "default-jre-headless", "zookeeper.jar": "libzookeeper-java" },
  mariadb: {
    mariadbd: "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    // The program that makes the data calls it.
    my_print_defaults: "mariadb-client-core",
  },
  sqlite: { sqlite3: "sqlite3" },
  faketime: { "libfaketimeMT.so.1": "faketime" },
  network: { ip: "iproute2", nft: "nftables", nsenter: "util-linux" },
  tls: { openssl: "openssl" },
  disk: { "mkfs.ext4": "e2fsprogs", mount: "mount", losetup: "mount", perl: "perl-base" },
  browser: { chromium: "chromium" },
  prometheus: { prometheus: "prometheus", promtool: "prometheus" },
  spin: { spin: "spin", gcc: "gcc", "stdio.h": "libc6-dev" },
} as const satisfies Record<string, Readonly<Record<string, string>>>;

/** A kind of server or tool that a lab can need. */
export type Kind = keyof typeof REQUIREMENTS;
export const KINDS = Object.keys(REQUIREMENTS) as readonly Kind[];

export type Find = (file: string) => string | null;

/** The kinds that are missing on this machine, and how to install them. */
export interface Missing {
  /** The kinds that are missing. */
  readonly kinds: readonly Kind[];
  /** The packages of Debian and Ubuntu that contain them. */
  readonly packages: readonly string[];
  /** How to install them: a command to paste where one is known. */
  readonly advice: string;
}

export const packagesOf = (kinds: readonly Kind[]): readonly string[] =>
  unique(kinds.flatMap((kind) => Object.values(REQUIREMENTS[kind])));

/** The missing kinds; null if none is missing. */
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

/** The path of a file of some kind; throws an error that says what to install. */
export function findProgram(file: string, find: Find = findFile): string {
  const path = find(file);
  if (path !== null) return path;
  const kind = KINDS.find((one) => file in REQUIREMENTS[one]);
  const advice = kind === undefined ? "" : ` (${missing([kind], find)?.advice})`;
  throw new Error(`${file} is not installed${advice}`);
}

export function findFile(file: string): string | null {
  const mode = /\.(jar|so|h)\b/.test(file) ? constants.R_OK : constants.X_OK;
  const found = foldersOf(file).find((folder) => isThere(join(folder, file), mode));
  return found === undefined ? null : join(found, file);
}

export const isRoot = (): boolean => process.getuid?.() === 0;
export const hasApt = (): boolean => existsSync("/usr/bin/apt-get") && existsSync("/etc/apt");

function foldersOf(file: string): readonly string[] {
  if (file.endsWith(".jar")) return ["/usr/share/java", "/usr/share/zookeeper"];
  if (file.endsWith(".h")) return ["/usr/include"];
  if (file.includes(".so")) {
    return [`/usr/lib/${multiarch()}`, "/usr/lib64", "/usr/lib", "/usr/local/lib"].map((folder) =>
      join(folder, "faketime"),
    );
  }
  // Searched before PATH, where Debian has a Perl script for psql, and no server.
  const postgres = "/usr/lib/postgresql";
  const versions = existsSync(postgres) ? readdirSync(postgres) : [];
  return [
    ...versions
      .sort((a, b) => Number(b) - Number(a))
      .map((version) => join(postgres, version, "bin")),
    ...(process.env["PATH"] ?? "").split(delimiter).filter((folder) => folder !== ""),
    // Not in every user's PATH.
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
