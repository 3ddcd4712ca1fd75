import { createHash } from "node:crypto";
import { InvalidArgumentError } from "../../../core/errors.js";
import { checkOneOf, checkOptions, checkText, show } from "../../../core/validate.js";
import { type JuteReader, JuteWriter, LENGTH_BYTES } from "./jute.js";

/** The server's record of a node. */
export interface Stat {
  /** The transaction that created the node. */
  readonly czxid: bigint;
  /** The transaction that last changed its data. */
  readonly mzxid: bigint;
  /** The transaction that last added or removed a child. */
  readonly pzxid: bigint;
  /** When the node was created, in milliseconds of the leader's wall clock. */
  readonly ctimeMs: number;
  /** When its data was last changed, in milliseconds of the leader's wall clock. */
  readonly mtimeMs: number;
  /** How often the data was changed. */
  readonly version: number;
  /** How often children were added or removed. */
  readonly cversion: number;
  /** How often the ACL was changed. */
  readonly aversion: number;
  /** The session that owns an ephemeral node; 0 for other nodes. */
  readonly ephemeralOwner: bigint;
  /** The length of the data in bytes. */
  readonly dataLength: number;
  /** The number of children. */
  readonly numChildren: number;
}

export function readStat(reply: JuteReader): Stat {
  // In the order in which they are sent.
  return {
    czxid: reply.long(),
    mzxid: reply.long(),
    ctimeMs: Number(reply.long()),
    mtimeMs: Number(reply.long()),
    version: reply.int(),
    cversion: reply.int(),
    aversion: reply.int(),
    ephemeralOwner: reply.long(),
    dataLength: reply.int(),
    numChildren: reply.int(),
    pzxid: reply.long(),
  };
}

/**
 * The kind of a new node. `ephemeral`: it ends with the session. `sequential`: the server appends ten
 * digits that rise. `container`: the server deletes it some time after its last child is gone.
 */
export type CreateMode =
  | "persistent"
  | "persistent-sequential"
  | "ephemeral"
  | "ephemeral-sequential"
  | "container";

const FLAGS: Readonly<Record<CreateMode, number>> = {
  persistent: 0,
  ephemeral: 1,
  "persistent-sequential": 2,
  "ephemeral-sequential": 3,
  container: 4,
};
const MODES = Object.keys(FLAGS) as CreateMode[];

/** The mode as a number; throws `InvalidArgumentError` if there is no such mode. */
export const flagsOf = (mode: CreateMode): number => FLAGS[checkOneOf(mode, "mode", MODES)];

/** A right on a node. `create` and `delete` are about its children. */
export type Permission = "read" | "write" | "create" | "delete" | "admin";

const BITS: readonly Permission[] = ["read", "write", "create", "delete", "admin"];

/** Rights on one node for one identity. They do not extend to its children. */
export interface Acl {
  /** The rights. */
  readonly permissions: readonly Permission[];
  /** `world`, `auth`, `digest`, `ip`, `x509`, or another that the server knows. */
  readonly scheme: string;
  /** The identity, as the scheme writes it. */
  readonly id: string;
}

/** Everyone may do everything: ZooKeeper's default. */
export const OPEN_ACL: readonly Acl[] = [{ permissions: BITS, scheme: "world", id: "anyone" }];

/** The creator may do everything, and others nothing. The client must have `auth`. */
export const CREATOR_ACL: readonly Acl[] = [{ permissions: BITS, scheme: "auth", id: "" }];

/**
 * An ACL entry for a user with a password; all permissions by default. Only a hash of the password
 * goes to the server. Throws `InvalidArgumentError` if the user has a ":" in it.
 *
 * @example
 * const acl = [digestAcl({ user: "app", password: secret }, ["read", "write"])];
 */
export function digestAcl(login: DigestLogin, permissions: readonly Permission[] = BITS): Acl {
  const { user } = login;
  const hash = createHash("sha1").update(credentialsOf(login)).digest("base64");
  return { permissions, scheme: "digest", id: `${user}:${hash}` };
}

/** A user and a password for the scheme `digest`. */
export interface DigestLogin {
  /** The user; without ":". */
  readonly user: string;
  /** The password. Without TLS it goes over the network in clear text. */
  readonly password: string;
}

/** `user:password`, as the scheme `digest` wants it. */
export function credentialsOf({ user, password }: DigestLogin): string {
  if (checkText(user, "auth.user", 1, 255).includes(":")) {
    throw new InvalidArgumentError('auth.user has a ":", which ends the user in a digest');
  }
  if (typeof password !== "string") throw new InvalidArgumentError("auth.password is not a string");
  return `${user}:${password}`;
}

/** An ACL that was checked and encoded once, for many nodes. */
export type EncodedAcl = Buffer;

/** Throws `InvalidArgumentError`. */
export function encodeAcl(acl: readonly Acl[]): EncodedAcl {
  const writer = new JuteWriter();
  writeAcl(writer, acl);
  return writer.frame().subarray(LENGTH_BYTES);
}

export function writeAcl(request: JuteWriter, acl: readonly Acl[]): void {
  const isList: boolean = Array.isArray(acl);
  if (!isList || acl.length === 0) {
    throw new InvalidArgumentError(`the acl is ${show(acl)}; it must be a list with an entry`);
  }
  request.list(acl, (entry) => {
    checkOptions(entry, "the fields of an acl", ["permissions", "scheme", "id"]);
    const { permissions, scheme, id } = entry;
    if (!Array.isArray(permissions)) {
      throw new InvalidArgumentError(`permissions are ${show(permissions)}; they must be a list`);
    }
    const bits = permissions.map((one) => 1 << BITS.indexOf(checkOneOf(one, "permission", BITS)));
    request.int(bits.reduce((all, bit) => all | bit, 0));
    request.text(checkText(scheme, "the scheme of an acl", 1, 255));
    // A server sends characters beyond U+FFFF back in an encoding that is not UTF-8.
    if (/[\ud800-\udfff]/.test(id)) {
      throw new InvalidArgumentError("the id of an acl has a character beyond U+FFFF");
    }
    request.text(checkText(id, "the id of an acl", 0, 65_535));
  });
}

export function readAcl(reply: JuteReader): Acl[] {
  return reply.list(3 * LENGTH_BYTES, () => {
    const bits = reply.int();
    const permissions = BITS.filter((_, i) => (bits & (1 << i)) !== 0);
    return { permissions, scheme: reply.text(), id: reply.text() };
  });
}
