import { type BatchedNames, toBatches } from "../shared/name-batches.js";
import { slices } from "../shared/slices.js";
import { type Batched, settleBatch, TurnBatcher } from "../shared/turn-batcher.js";
import type { ZooKeeperClient } from "./client/client.js";
import { ZooKeeperError } from "./client/errors.js";
import type { MultiPart, MultiReadPart } from "./client/multi.js";
import type { Stat } from "./client/records.js";
import { isCode } from "./errors.js";
import type { Layout } from "./layout.js";
import { decodeResize, type Resize } from "./queue.js";

/** More in one request would save little, and all are sent again if one is refused. */
const WRITES_PER_REQUEST = 32;
const READS_PER_REQUEST = 32;
/** Parts of one request that reads many nodes. */
const PARTS_PER_REQUEST = 256;

/** A name's container, as one request read it. */
export interface NameNodes {
  readonly children: readonly string[];
  readonly resize: Resize | null;
  /** The version of the container's data; -1: there is no container. */
  readonly version: number;
}

/** The reply to a write: its transaction, and the path of the last node that it created. */
export interface Written {
  readonly zxid: bigint;
  readonly path: string;
}

interface Write extends BatchedNames {
  readonly parts: readonly MultiPart[];
}

interface Read {
  readonly reads: readonly MultiReadPart[];
}

export type NodeData = { readonly data: Buffer; readonly stat: Stat };
export type ReadResult = { readonly children: string[] } | NodeData | ZooKeeperError;
type Reply = Written | readonly ReadResult[];
type Sent<R = Write | Read> = Batched<R, Reply>;

/**
 * The requests of one session about names. Those of one turn of the event loop are sent together: the writes
 * by `multi`, and the reads behind them by `multiRead`, so that a read includes all writes of its turn.
 */
export class TurnRequests {
  readonly #client: ZooKeeperClient;
  readonly #layout: Layout;
  readonly #turn = new TurnBatcher<Write | Read, Reply>((all) => this.#send(all));
  /** Names that are read in this turn. */
  readonly #reads = new Map<string, Promise<NameNodes>>();
  #sync: Promise<unknown> | null = null;

  constructor(client: ZooKeeperClient, layout: Layout) {
    this.#client = client;
    this.#layout = layout;
  }

  /** Makes a claim on the name, which is the last part. The parts succeed or fail together. */
  create(name: string, parts: readonly MultiPart[]): Promise<Written> {
    return this.#turn.send({ names: [name], sharesNames: false, parts }) as Promise<Written>;
  }

  delete(path: string): Promise<unknown> {
    return this.#turn.send({ names: [], sharesNames: true, parts: [{ op: "delete", path }] });
  }

  /** Reads the name after everything that was done before this call, also through other servers. */
  async readLatest(name: string): Promise<NameNodes> {
    // One for all reads of this turn, which are sent behind it.
    this.#sync ??= this.#client.sync(this.#layout.names);
    const [, nodes] = await Promise.all([this.#sync, this.readName(name)]);
    return nodes;
  }

  readName(name: string): Promise<NameNodes> {
    const there = this.#reads.get(name);
    if (there !== undefined) return there;
    const path = this.#layout.name(name);
    const nodes = this.#read([
      { op: "getChildren", path },
      { op: "getData", path },
    ]).then((results) => toNameNodes(results, path));
    this.#reads.set(name, nodes);
    return nodes;
  }

  /** The nodes in the name's container; none if there is no container. */
  readChildren(name: string): Promise<readonly string[]> {
    const read = this.#read([{ op: "getChildren", path: this.#layout.name(name) }]);
    return read.then(([result]) => childrenOf(result!));
  }

  /** Reads many nodes, not as of one moment. Each has a result or an error. */
  async readAll(parts: readonly MultiReadPart[]): Promise<readonly ReadResult[]> {
    const sent = [...slices(parts, PARTS_PER_REQUEST)].map((some) => this.#client.multiRead(some));
    return (await Promise.all(sent)).flatMap(({ results }) => results);
  }

  /** Null: there is no such node. */
  async readData(path: string): Promise<NodeData | null> {
    const [data] = await this.#read([{ op: "getData", path }]);
    return dataOf(data!);
  }

  #read(reads: readonly MultiReadPart[]): Promise<readonly ReadResult[]> {
    return this.#turn.send({ reads }) as Promise<readonly ReadResult[]>;
  }

  #send(requests: readonly Sent[]): void {
    this.#reads.clear();
    this.#sync = null;
    const writes = requests.filter((one): one is Sent<Write> => "parts" in one.request);
    for (const batch of toBatches(writes, WRITES_PER_REQUEST, ({ request }) => request)) {
      if (batch.length === 1) this.#writeAlone(batch[0]!);
      else this.#write(batch);
    }
    const reads = requests.filter((one): one is Sent<Read> => "reads" in one.request);
    for (const batch of slices(reads, READS_PER_REQUEST)) this.#sendReads(batch);
  }

  #write(batch: readonly Sent<Write>[]): void {
    this.#client.multi(batch.flatMap(({ request }) => request.parts)).then(
      ({ results, reply }) => {
        let end = 0;
        for (const { request, resolve } of batch) {
          end += request.parts.length;
          resolve(toWritten(results[end - 1]!, reply));
        }
      },
      (error: unknown) => {
        // A part that is refused fails all of them, and nothing was executed.
        const isRefused = error instanceof ZooKeeperError && error.part !== null;
        for (const one of batch) {
          if (isRefused) this.#writeAlone(one);
          else one.reject(error);
        }
      },
    );
  }

  #writeAlone({ request, resolve, reject }: Sent<Write>): void {
    this.#request(request.parts).then(resolve, reject);
  }

  /** A single part costs the server less outside of a `multi`. */
  async #request(parts: readonly MultiPart[]): Promise<Written> {
    const [part] = parts;
    if (parts.length === 1 && part?.op === "create") {
      const { path, mode, data } = part;
      const created = await this.#client.create(path, { mode, data });
      return toWritten(created, created.reply);
    }
    if (parts.length === 1 && part?.op === "delete") {
      const deleted = await this.#client.delete(part.path);
      return toWritten(deleted, deleted.reply);
    }
    const { results, reply } = await this.#client.multi(parts);
    return toWritten(results.at(-1)!, reply);
  }

  #sendReads(batch: readonly Sent<Read>[]): void {
    const parts = batch.flatMap(({ request }) => request.reads);
    let begin = 0;
    settleBatch(batch, this.#client.multiRead(parts), {
      replyTo: ({ results }, at) => {
        const end = begin + batch[at]!.request.reads.length;
        const own = results.slice(begin, end);
        begin = end;
        return own;
      },
    });
  }
}

const toWritten = (result: object, { zxid }: { readonly zxid: bigint }): Written => ({
  zxid,
  path: "path" in result ? String(result.path) : "",
});

function orThrow<T>(result: T | ZooKeeperError): T {
  if (result instanceof ZooKeeperError) throw result;
  return result;
}

export const childrenOf = (result: ReadResult): readonly string[] =>
  isCode(result, "NO_NODE") ? [] : (orThrow(result) as { children: string[] }).children;

export const dataOf = (result: ReadResult): NodeData | null =>
  isCode(result, "NO_NODE") ? null : (orThrow(result) as NodeData);

function toNameNodes(results: readonly ReadResult[], path: string): NameNodes {
  if (results.some((one) => isCode(one, "NO_NODE"))) {
    return { children: [], resize: null, version: -1 };
  }
  const [{ children }, { data, stat }] = results.map(orThrow) as [{ children: string[] }, NodeData];
  return { children, resize: decodeResize(data, path), version: stat.version };
}
