import type { PostgresClient } from "./client.js";

/** The callbacks of all users of a client, and the one listener for all of them. */
interface Listening {
  readonly users: Set<() => void>;
  readonly listener: () => void;
}

const byClient = new WeakMap<PostgresClient, Listening>();

/**
 * Calls back when the client, or an idle connection of the pool, is lost; an "error" event without a listener would
 * end the process. The returned function ends this. All users of a client share one listener, which goes with the last.
 */
export function onClientError(client: PostgresClient, lost: () => void): () => void {
  // A callback that is passed twice counts twice.
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
