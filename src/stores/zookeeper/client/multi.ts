import { InvalidArgumentError } from "../../../core/errors.js";
import { checkOneOf, checkOptions, show } from "../../../core/validate.js";
import { OpCode, PART_ERROR } from "./codes.js";
import { RefusedReply, requestText, ZooKeeperError } from "./errors.js";
import { type JuteReader, type JuteWriter, MalformedReply } from "./jute.js";
import {
  type CreateOptions,
  check,
  create,
  type Data,
  getData,
  listChildren,
  type Operation,
  remove,
  setData,
} from "./operations.js";
import type { Chroot } from "./paths.js";
import type { EncodedAcl, Stat } from "./records.js";

const ANOTHER_FAILED = -2;

/** A part of `multi`. A missing version matches every version. */
export type MultiPart =
  | ({ readonly op: "create"; readonly path: string } & CreateOptions)
  | { readonly op: "delete" | "check"; readonly path: string; readonly version?: number }
  | {
      readonly op: "setData";
      readonly path: string;
      readonly data: Data;
      readonly version?: number;
    };

/**
 * The result of a part of `multi`: the new node's path, the changed node's state, or nothing. Servers
 * tell no state of a new node here, but its `czxid` is the `zxid` of the reply.
 */
export type MultiResult<P> = P extends { readonly op: "create" }
  ? { readonly path: string }
  : P extends { readonly op: "setData" }
    ? { readonly stat: Stat }
    : Record<never, never>;

/** A part of `multiRead`. */
export interface MultiReadPart {
  /** The kind of read. */
  readonly op: "getData" | "getChildren";
  /** The node. */
  readonly path: string;
}

/** The result of a part of `multiRead`: an error is the part's own, such as `NO_NODE`. */
export type MultiReadResult<P> =
  | (P extends { readonly op: "getData" }
      ? { readonly data: Buffer; readonly stat: Stat }
      : { readonly children: string[] })
  | ZooKeeperError;

/** A multi writes its parts one after another, each behind a header; the end is a header too. */
function combined<T>(
  name: "multi" | "multiRead",
  parts: readonly Operation<unknown>[],
  readReply: (reply: JuteReader) => T,
): Operation<T> {
  const header = (request: JuteWriter, type: number, done: boolean): void => {
    request.int(type);
    request.bool(done);
    request.int(-1);
  };
  return {
    name,
    type: OpCode[name],
    path: parts[0]!.path,
    isWrite: name === "multi",
    write(request) {
      for (const part of parts) {
        header(request, part.type, false);
        part.write(request);
      }
      header(request, PART_ERROR, true);
    },
    read: readReply,
  };
}

/** The value of a part, or the number of its error. */
function readPart<T>(reply: JuteReader, part: Operation<T>, chroot: Chroot): T | object | number {
  const type = reply.int();
  const done = reply.bool();
  reply.int();
  if (done) throw new MalformedReply("fewer results than the request has parts");
  if (type === PART_ERROR) return reply.int();
  // The reply to create2 has no state of the node here, and that to a container has one.
  if (type === OpCode.create) return { path: chroot.relative(reply.text()) };
  return part.read(reply);
}

/** All parts or none. */
export function multi(
  chroot: Chroot,
  list: readonly MultiPart[],
  acl: EncodedAcl,
): Operation<{ results: object[] }> {
  const parts = operationsOf({ chroot, acl }, list, WRITES);
  return combined("multi", parts, (reply) => {
    const results = parts.map((part) => readPart(reply, part, chroot));
    // If one fails, all have numbers: those before it 0, those after it -2.
    if (results.some((one) => typeof one === "number")) {
      const numbers = results.map((one) => (typeof one === "number" ? one : 0));
      const failed = numbers.findIndex((number) => number !== 0 && number !== ANOTHER_FAILED);
      const part = Math.max(failed, 0);
      throw new RefusedReply(numbers[failed] ?? ANOTHER_FAILED, part, parts[part]!.path);
    }
    return { results: results as object[] };
  });
}

/** Each part succeeds or fails by itself. */
export function multiRead(
  chroot: Chroot,
  list: readonly MultiReadPart[],
): Operation<{ results: object[] }> {
  const parts = operationsOf({ chroot }, list, READS);
  return combined("multiRead", parts, (reply) => ({
    results: parts.map((part, i) => {
      const result = readPart(reply, part, chroot);
      return typeof result === "number" ? partError(part, i, result) : result;
    }),
  }));
}

function partError(
  { name, path }: Operation<object>,
  part: number,
  number: number,
): ZooKeeperError {
  const { code, reason } = new RefusedReply(number);
  return new ZooKeeperError(code, { request: requestText(name, path), path, part, reason });
}

/** The client's settings that a read needs. */
interface ReadSettings {
  readonly chroot: Chroot;
}

interface WriteSettings extends ReadSettings {
  /** The ACL of a new node that is created without one of its own. */
  readonly acl: EncodedAcl;
}

type MakePart<S, P> = (settings: S, part: P) => Operation<object>;
/** By op: how a part becomes a request, and the fields that it may have. */
type PartKinds<S, P extends { op: string }> = {
  [O in P["op"]]: {
    readonly make: MakePart<S, Extract<P, { op: O }>>;
    readonly fields: readonly string[];
  };
};

const WRITES: PartKinds<WriteSettings, MultiPart> = {
  create: {
    make: ({ chroot, acl }, part) => create(chroot, part.path, part, acl),
    fields: ["op", "path", "data", "mode", "acl"],
  },
  delete: {
    make: ({ chroot }, { path, version }) => remove(chroot, path, version),
    fields: ["op", "path", "version"],
  },
  check: {
    make: ({ chroot }, { path, version }) => check(chroot, path, version),
    fields: ["op", "path", "version"],
  },
  setData: {
    make: ({ chroot }, { path, data, version }) => setData(chroot, path, data, version),
    fields: ["op", "path", "data", "version"],
  },
};

const READS: PartKinds<ReadSettings, MultiReadPart> = {
  getData: {
    make: ({ chroot }, { path }) => getData(chroot, path, false),
    fields: ["op", "path"],
  },
  getChildren: {
    make: ({ chroot }, { path }) => listChildren(chroot, path),
    fields: ["op", "path"],
  },
};

function operationsOf<S, P extends { op: string }>(
  settings: S,
  parts: readonly P[],
  kinds: PartKinds<S, P>,
): Operation<object>[] {
  if (!Array.isArray(parts) || parts.length === 0) {
    throw new InvalidArgumentError(
      `the parts are ${show(parts)}; they must be a list with an entry`,
    );
  }
  const ops = Object.keys(kinds) as P["op"][];
  return parts.map((part: P) => {
    const { make, fields } = kinds[checkOneOf(part?.op, "op of a part", ops)];
    checkOptions(part, "the fields of a part", fields);
    return (make as MakePart<S, P>)(settings, part);
  });
}
