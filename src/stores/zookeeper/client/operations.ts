import { InvalidArgumentError } from "../../../core/errors.js";
import { checkNumber, show } from "../../../core/validate.js";
import { OpCode, Xid } from "./codes.js";
import type { JuteReader, JuteWriter } from "./jute.js";
import type { Chroot } from "./paths.js";
import {
  type Acl,
  type CreateMode,
  flagsOf,
  OPEN_ACL,
  readAcl,
  readStat,
  type Stat,
  writeAcl,
} from "./records.js";

/** A request and how to read its reply. Arguments are checked when it is made or written. */
export interface Operation<T> {
  readonly name: string;
  readonly type: number;
  /** As the caller knows it; null if the request has none. */
  readonly path: string | null;
  /** Whether it needs the leader and a majority. */
  readonly isWrite: boolean;
  /** The request's fixed number, if it has one. */
  readonly xid?: number;
  write(request: JuteWriter): void;
  /** Throws `RefusedReply` for an error inside of the reply, `MalformedReply` for nonsense. */
  read(reply: JuteReader): T;
  /** The value if the server replies NO_NODE, where that is no error. */
  readonly missing?: T;
}

/** Bytes of a node; a string is written as UTF-8. */
export type Data = Uint8Array | string;

const NONE = Buffer.alloc(0);
/** The version that matches every version. */
const ANY = -1;
const INT_MAX = 2 ** 31 - 1;

/** Options of a new node. */
export interface CreateOptions {
  /** Empty by default. */
  readonly data?: Data | undefined;
  /** `persistent` by default. */
  readonly mode?: CreateMode | undefined;
  /** `OPEN_ACL` by default. */
  readonly acl?: readonly Acl[] | undefined;
}

/** A new node. */
export interface Created {
  /** The path, with the digits of a sequential node. */
  readonly path: string;
  /** The node's state; `czxid` is the transaction that created it. */
  readonly stat: Stat;
}

type Fields<T> = Pick<Operation<T>, "write" | "read"> & Partial<Operation<T>>;

const read = <T>(
  name: keyof typeof OpCode,
  path: string | null,
  rest: Fields<T>,
): Operation<T> => ({
  name,
  type: OpCode[name],
  path,
  isWrite: false,
  ...rest,
});

const write = <T>(name: keyof typeof OpCode, path: string, rest: Fields<T>): Operation<T> =>
  read(name, path, { isWrite: true, ...rest });

const nothing = (): Record<never, never> => ({});
const statOf = (reply: JuteReader): { stat: Stat } => ({ stat: readStat(reply) });

export function create(chroot: Chroot, path: string, options: CreateOptions): Operation<Created> {
  const { data = NONE, mode = "persistent", acl = OPEN_ACL } = options;
  const flags = flagsOf(mode);
  const absolute = mode.endsWith("sequential")
    ? chroot.absoluteSequential(path)
    : chroot.absolute(path);
  return write("create2", path, {
    name: "create",
    // The server refuses a container by create2.
    type: mode === "container" ? OpCode.createContainer : OpCode.create2,
    write(request) {
      request.text(absolute);
      request.bytes(bytesOf(data));
      writeAcl(request, acl);
      request.int(flags);
    },
    read: (reply) => ({ path: chroot.relative(reply.text()), stat: readStat(reply) }),
  });
}

const versioned = (
  name: "delete" | "check",
  chroot: Chroot,
  path: string,
  version: number,
): Operation<Record<never, never>> => {
  const [absolute, checked] = [chroot.absolute(path), checkVersion(version)];
  return write(name, path, {
    write(request) {
      request.text(absolute);
      request.int(checked);
    },
    read: nothing,
  });
};

export const remove = (chroot: Chroot, path: string, version = ANY) =>
  versioned("delete", chroot, path, version);

/** Only as a part of a multi: a server closes the connection on which it comes alone. */
export const check = (chroot: Chroot, path: string, version = ANY) =>
  versioned("check", chroot, path, version);

export function setData(
  chroot: Chroot,
  path: string,
  data: Data,
  version = ANY,
): Operation<{ stat: Stat }> {
  const [absolute, checked] = [chroot.absolute(path), checkVersion(version)];
  return write("setData", path, {
    write(request) {
      request.text(absolute);
      request.bytes(bytesOf(data));
      request.int(checked);
    },
    read: statOf,
  });
}

export function setAcl(
  chroot: Chroot,
  path: string,
  acl: readonly Acl[],
  version = ANY,
): Operation<{ stat: Stat }> {
  const [absolute, checked] = [chroot.absolute(path), checkVersion(version)];
  return write("setAcl", path, {
    write(request) {
      request.text(absolute);
      writeAcl(request, acl);
      request.int(checked);
    },
    read: statOf,
  });
}

/** A request that has a path and says whether to watch it. */
const look = <T>(
  name: "exists" | "getData" | "getChildren2" | "getChildren",
  chroot: Chroot,
  path: string,
  watch: boolean,
  rest: Omit<Fields<T>, "write">,
): Operation<T> => {
  const absolute = chroot.absolute(path);
  return read(name, path, {
    ...rest,
    write(request) {
      request.text(absolute);
      request.bool(watch);
    },
  });
};

export const exists = (chroot: Chroot, path: string, watch: boolean) =>
  look<{ stat: Stat | null }>("exists", chroot, path, watch, {
    read: statOf,
    missing: { stat: null },
  });

export const getData = (chroot: Chroot, path: string, watch: boolean) =>
  look("getData", chroot, path, watch, {
    read: (reply) => ({ data: reply.bytes(), stat: readStat(reply) }),
  });

export const getChildren = (chroot: Chroot, path: string, watch: boolean) =>
  look("getChildren2", chroot, path, watch, {
    name: "getChildren",
    read: (reply) => ({ children: reply.texts(), stat: readStat(reply) }),
  });

/** As a part of a multiRead, which has no stat. */
export const listChildren = (chroot: Chroot, path: string) =>
  look("getChildren", chroot, path, false, { read: (reply) => ({ children: reply.texts() }) });

/** A request that has nothing but a path. */
const onPath = <T>(
  name: "sync" | "getAcl" | "getEphemerals",
  chroot: Chroot,
  path: string,
  readReply: (reply: JuteReader) => T,
): Operation<T> => {
  const absolute = chroot.absolute(path);
  return read(name, path, { write: (request) => request.text(absolute), read: readReply });
};

export const sync = (chroot: Chroot, path: string) => onPath("sync", chroot, path, nothing);

export const getAcl = (chroot: Chroot, path: string) =>
  onPath("getAcl", chroot, path, (reply) => ({ acl: readAcl(reply), stat: readStat(reply) }));

/** The session's own ephemeral nodes whose path begins with this text. */
export const getEphemerals = (chroot: Chroot, path: string) =>
  onPath("getEphemerals", chroot, path, (reply) => ({
    paths: reply.texts().map((one) => chroot.relative(one)),
  }));

const onMode = (name: "addWatch" | "removeWatches", absolute: string, path: string, mode: number) =>
  read(name, path, {
    write(request) {
      request.text(absolute);
      request.int(mode);
    },
    read: nothing,
  });

export const addWatch = (chroot: Chroot, path: string, recursive: boolean) =>
  onMode("addWatch", chroot.absolute(path), path, recursive ? 1 : 0);

/** Removes all watches of the session at the path. */
export const removeWatches = (chroot: Chroot, path: string) =>
  onMode("removeWatches", chroot.absolute(path), path, 3);

export const PING = read("ping", null, { xid: Xid.ping, write: () => {}, read: nothing });

export const CLOSE = read("close", null, { isWrite: true, write: () => {}, read: nothing });

export const auth = (credentials: string) =>
  read("auth", null, {
    xid: Xid.auth,
    write(request) {
      request.int(0);
      request.text("digest");
      request.bytes(Buffer.from(credentials));
    },
    read: nothing,
  });

function bytesOf(data: unknown): Uint8Array {
  if (typeof data === "string") return Buffer.from(data);
  if (data instanceof Uint8Array) return data;
  throw new InvalidArgumentError(`the data is ${show(data)}; it must be a string or a Uint8Array`);
}

const checkVersion = (version: unknown): number =>
  checkNumber(version, "the version", { min: ANY, max: INT_MAX, integer: true });
