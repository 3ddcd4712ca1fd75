import type {
  NodeClaim,
  NodeClaimReply,
  NodeEvents,
  NodeNameInfo,
  NodeRelease,
  NodeReleaseReply,
  NodeRenewal,
  NodeRenewReply,
  NodeRevocation,
  NodeState,
  QuorumNode,
} from "../../../stores/quorum/node.js";
import type { MessagePath } from "../message-path.js";
import type { SimulatedServer } from "./server.js";
import type { Caller } from "./server-data.js";

/** A node as one process reaches it by messages: what `RedisNode` is to a real server. */
export class SimulatedNode implements QuorumNode {
  readonly where: string;
  readonly #server: SimulatedServer;
  readonly #path: MessagePath;
  readonly #about: Omit<Caller, "marker">;
  #marker = "";
  #events: NodeEvents | null = null;

  constructor(
    where: string,
    server: SimulatedServer,
    path: MessagePath,
    about: Omit<Caller, "marker">,
  ) {
    this.where = where;
    this.#server = server;
    this.#path = path;
    this.#about = about;
  }

  join(): Promise<NodeState> {
    return this.#send((caller) => this.#server.join(caller));
  }

  settle(marker: string): Promise<void> {
    return this.#send((caller) => this.#server.settle(caller, marker));
  }

  claim(claim: NodeClaim): Promise<NodeClaimReply> {
    return this.#send((caller) => this.#server.claim(caller, claim));
  }

  raise(name: string, id: string, number: number): Promise<boolean> {
    return this.#send((caller) => this.#server.raise(caller, name, id, number));
  }

  release(release: NodeRelease): Promise<NodeReleaseReply> {
    return this.#send((caller) => this.#server.release(caller, release));
  }

  pass(name: string): Promise<void> {
    return this.#send((caller) => this.#server.pass(caller, name));
  }

  renew(renewals: readonly NodeRenewal[]): Promise<readonly NodeRenewReply[]> {
    return this.#path.trip(() => this.#server.renew(renewals));
  }

  revoke(revocation: NodeRevocation): Promise<void> {
    return this.#path.trip(() => this.#server.revoke(revocation));
  }

  inspect(names: readonly string[]): Promise<readonly NodeNameInfo[]> {
    return this.#path.trip(() => names.map((name) => this.#server.inspect(name)));
  }

  names(prefix: string): Promise<readonly string[]> {
    return this.#path.trip(() => this.#server.names(prefix));
  }

  listen(events: NodeEvents): Promise<void> {
    this.#events = events;
    return this.#path.trip(() => this.#subscribe());
  }

  async stopListening(): Promise<void> {
    this.#events = null;
    this.#server.unsubscribe(this.#about.channel);
  }

  close(): Promise<void> {
    return this.stopListening();
  }

  /** The subscription was lost and comes back: messages may have been missed. */
  resubscribe(): void {
    if (this.#events === null) return;
    this.#subscribe();
    this.#path.push(() => this.#events?.missed());
  }

  unsubscribe(): void {
    this.#server.unsubscribe(this.#about.channel);
  }

  #subscribe(): void {
    if (this.#events === null) return;
    this.#server.subscribe(this.#about.channel, (name) =>
      this.#path.push(() => this.#events?.freed(name)),
    );
  }

  /** A node that is out of service examines itself at every request. */
  async #send<T>(command: (caller: Caller) => T): Promise<T> {
    const caller = { ...this.#about, marker: this.#marker };
    const { reply, marker } = await this.#path.trip(() => {
      const answer = command(caller);
      return { reply: answer, marker: this.#server.isInService ? this.#server.marker : "" };
    });
    this.#marker = marker;
    return reply;
  }
}
