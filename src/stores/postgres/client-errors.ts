import type { PostgresClient } from "./client.js";

/** All that use a client, and its one listener. */
interface Listening {
  readonly users: Set<() => void>;
  readonly listener: () => void;
}

const byClient = new WeakMap<PostgresClient, Listening>();

/**
 * Calls back when the client, or an idle connection of the pool, is lost: an "error" event that nobody listens to
 * would end the process. However many stores use a client, it has one listener, until the last of them calls the
 * function that is returned.
 */
export function onClientError(client: PostgresClient, lost: () => void): () => void {
  // Callbacks that are given twice count twice.
  const user = (): void => lost();
  const listening = byClient.get(client) ?? listen(client);
  listening.users.add(user);
  return () => {
    if (!listening.users.delete(user) || listening.users.size > 0) return;
    client.off("error", listening.listener);
    byClient.delete(client);
  };
}

function listen(client: PostgresClient): Listening {
  const users = new Set<() => void>();
  const listener = (): void => {
    for (const lost of [...users]) lost();
  };
  client.on("error", listener);
  const listening = { users, listener };
  byClient.set(client, listening);
  return listening;
}
