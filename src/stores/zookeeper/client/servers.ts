import { InvalidArgumentError } from "../../../core/errors.js";
import { show } from "../../../core/validate.js";
import { addressOf } from "../../url.js";

const DEFAULT_PORT = 2181;

/** Where a server listens. */
export interface ServerAddress {
  readonly host: string;
  readonly port: number;
  /** `host:port`. */
  readonly name: string;
}

/** The servers of an ensemble in random order, so that many clients spread over them. */
export class Servers {
  readonly #servers: readonly ServerAddress[];
  #next = 0;
  #tries = 0;

  constructor(texts: unknown, random: () => number) {
    if (!Array.isArray(texts) || texts.length === 0) {
      throw new InvalidArgumentError(
        `servers is ${show(texts)}; it must be a list such as ["zk1:2181", "zk2:2181"]`,
      );
    }
    this.#servers = shuffled(texts.map(parseServer), random);
  }

  get count(): number {
    return this.#servers.length;
  }

  /** Whether each was tried since one of them has answered a request. */
  get allTried(): boolean {
    return this.#tries >= this.#servers.length;
  }

  next(): ServerAddress {
    this.#tries++;
    const server = this.#servers[this.#next]!;
    this.#next = (this.#next + 1) % this.#servers.length;
    return server;
  }

  /** The server in use has answered a request. */
  answered(): void {
    this.#tries = 0;
  }
}

function parseServer(text: unknown): ServerAddress {
  const match =
    typeof text === "string"
      ? /^(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9_.-]+))(?::(\d{1,5}))?$/.exec(text)
      : null;
  const port = Number(match?.[3] ?? DEFAULT_PORT);
  if (match === null || port < 1 || port > 65_535) {
    throw new InvalidArgumentError(
      `a server is ${show(text)}; it must be "host:port", with an IPv6 address in []`,
    );
  }
  const host = match[1] ?? match[2]!;
  return { host, port, name: addressOf(host, port) };
}

/** By Fisher and Yates: every order is equally likely. */
function shuffled<T>(values: readonly T[], random: () => number): T[] {
  const result = [...values];
  for (let last = result.length - 1; last > 0; last--) {
    const other = Math.floor(random() * (last + 1));
    [result[last], result[other]] = [result[other]!, result[last]!];
  }
  return result;
}
