import type { ChildServer } from "./child-server.js";
import type { Cluster } from "./server.js";

export interface Member extends ChildServer {
  /** The term in which the member leads; null if it does not lead. Rejects if it does not reply. */
  leads(): Promise<bigint | null>;
}

export class ServerCluster<S extends Member> implements Cluster<S> {
  readonly servers: readonly S[];
  readonly url: string;

  constructor(scheme: string, servers: readonly S[]) {
    this.servers = servers;
    this.url = `${scheme}://${servers.map(({ address, port }) => `${address}:${port}`).join(",")}`;
  }

  async leader(): Promise<S> {
    const running = this.servers.filter(({ state }) => state === "running");
    const terms = await Promise.all(running.map((server) => server.leads().catch(() => null)));
    // A member that was cut off may still think that it leads.
    const last = terms.reduce((a, b) => (a === null || (b !== null && b > a) ? b : a), null);
    if (last === null) {
      throw new Error(`nobody leads ${this.servers.map(({ name }) => name).join(", ")}`);
    }
    return running[terms.indexOf(last)]!;
  }
}
