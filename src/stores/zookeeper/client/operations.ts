import { InvalidArgumentError } from "../../../core/errors.js";
import { checkNumber, show } from "../../../core/validate.js";
import { OpCode, Xid } from "./codes.js";
import type { JuteReader, JuteWriter } from "./jute.js";
import type { Chroot } from "./paths.js";
import {
  type Acl,
  type CreateMode,
  type EncodedAcl,
  flagsOf,
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

/** The version that matches every version. */
const ANY = -1;
const INT_MAX = 2 ** 31 - 1;

/** Options of a new node. */
export interface CreateOptions {
  /** Empty by default. */
  readonly data?: Data | undefined;
  /** `persistent` by default. */
  readonly mode?: CreateMode | undefined;
  /** The client's `acl` by default. */
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

export function create(
  chroot: Chroot,
  path: string,
  options: CreateOptions,
  defaultAcl: EncodedAcl,
): Operation<Created> {
  const { data = "", mode = "persistent", acl } = options;
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
      writeData(request, data);
      if (acl === undefined) request.encoded(defaultAcl);
      else writeAcl(request, acl);
      request.int(flags);
    },
    read: (reply) => ({ path: chroot.relative(reply.text()), stat: readStat(reply) }),
  });
}

/** A write that begins with the path and ends with a version. */
const versioned = <T>(
  name: "delete" | "check" | "setData" | "setAcl",
  chroot: Chroot,
  path: string,
  version: number,
  readReply: (reply: JuteReader) => T,
  writeMiddle: (request: JuteWriter) => void = () => {},
): Operation<T> => {
  const [absolute, checked] = [chroot.absolute(path), checkVersion(version)];
  return write(name, path, {
    write(request) {
      request.text(absolute);
      writeMiddle(request);
      request.int(checked);
    },
    read: readReply,
  });
};

export const remove = (chroot: Chroot, path: string, version = ANY) =>
  versioned("delete", chroot, path, version, nothing);

/** Only as a part of a multi: a server closes the connection on which it comes alone. */
export const check = (chroot: Chroot, path: string, version = ANY) =>
  versioned("check", chroot, path, version, nothing);

export const setData = (chroot: Chroot, path: string, data: Data, version = ANY) =>
  versioned("setData", chroot, path, version, statOf, (request) => writeData(request, data));

export const setAcl = (chroot: Chroot, path: string, acl: readonly Acl[], version = ANY) =>
  versioned("setAcl", chroot, path, version, statOf, (request) => writeAcl(request, acl));

/** A request that begins with the path, and is no write. */
const onPath = <T>(
  name: keyof typeof OpCode,
  chroot: Chroot,
  path: string,
  rest: Omit<Fields<T>, "write">,
  writeEnd: (request: JuteWriter) => void = () => {},
): Operation<T> => {
  const absolute = chroot.absolute(path);
  return read<T>(name, path, {
    ...(rest as Fields<T>),
    write(request) {
      request.text(absolute);
      writeEnd(request);
    },
  });
};

/** The end of a read: whether to watch. */
const flag = (watch: boolean) => (request: JuteWriter) => request.bool(watch);
const dataOf = (reply: JuteReader) => ({ data: reply.bytes(), stat: readStat(reply) });
const namesOf = (reply: JuteReader) => ({ children: reply.texts() });
const childrenOf = (reply: JuteReader) => ({ ...namesOf(reply), stat: readStat(reply) });

export const exists = (chroot: Chroot, path: string, watch: boolean) => {
  const rest = { read: statOf, missing: { stat: null } };
  return onPath<{ stat: Stat | null }>("exists", chroot, path, rest, flag(watch));
};

export const getData = (chroot: Chroot, path: string, watch: boolean) =>
  onPath("getData", chroot, path, { read: dataOf }, flag(watch));

export const getChildren = (chroot: Chroot, path: string, watch: boolean) => {
  const rest = { name: "getChildren", read: childrenOf };
  return onPath("getChildren2", chroot, path, rest, flag(watch));
};

/** As a part of a multiRead, which has no stat. */
export const listChildren = (chroot: Chroot, path: string) =>
  onPath("getChildren", chroot, path, { read: namesOf }, flag(false));

export const sync = (chroot: Chroot, path: string) =>
  onPath("sync", chroot, path, { read: nothing });

export const getAcl = (chroot: Chroot, path: string) =>
  onPath("getAcl", chroot, path, {
    read: (reply) => ({ acl: readAcl(reply), stat: readStat(reply) }),
  });

/** The session's own ephemeral nodes whose path begins with this text. */
export const getEphemerals = (chroot: Chroot, path: string) =>
  onPath("getEphemerals", chroot, path, {
    read: (reply) => ({ paths: reply.texts().map((one) => chroot.relative(one)) }),
  });

export const addWatch = (chroot: Chroot, path: string, recursive: boolean) =>
  onPath("addWatch", chroot, path, { read: nothing }, (request) => request.int(recursive ? 1 : 0));

/** Removes all watches of the session at the path. */
export const removeWatches = (chroot: Chroot, path: string) =>
  onPath("removeWatches", chroot, path, { read: nothing }, (request) => request.int(3));

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

function writeData(request: JuteWriter, data: unknown): void {
  if (typeof data === "string") request.text(data);
  else if (data instanceof Uint8Array) request.bytes(data);
  else
    throw new InvalidArgumentError(
      `the data is ${show(data)}; it must be a string or a Uint8Array`,
    );
}

const checkVersion = (version: unknown): number =>
  checkNumber(version, "the version", { min: ANY, max: INT_MAX, integer: true });
