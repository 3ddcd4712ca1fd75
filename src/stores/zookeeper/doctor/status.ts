import { connect as connectPlain } from "node:net";
import { connect as connectTls } from "node:tls";
import { addressOf, type StoreUrl } from "../../url.js";
import type { ConnectionTls } from "../client/connection.js";
import { checkedSettings } from "../client/options.js";
import { PORT, storeOptions } from "../open.js";

/** A server's replies to four-letter words; a field is null if the server did not answer that word. */
export interface ServerStatus {
  /** `host:port`. */
  readonly server: string;
  /** Why it can't be reached; null if it can. */
  readonly silent: string | null;
  readonly version: string | null;
  /** `leader`, `follower`, `observer`, `standalone` or `read-only`; null also if it has no majority. */
  readonly mode: string | null;
  /** It answers, but serves no requests. */
  readonly isIdle: boolean;
  readonly tickMs: number | null;
  readonly minSessionMs: number | null;
  readonly maxSessionMs: number | null;
}

const REPLY_MS = 2_000;
const MOST_BYTES = 65_536;

/** Asks each server of the URL by itself. */
export function readStatuses(url: StoreUrl): Promise<ServerStatus[]> {
  const { root: _root, ...options } = storeOptions(url);
  const { tls } = checkedSettings(options);
  return Promise.all(
    url.hosts.map(async ({ host, port: named }) => {
      const port = named ?? PORT;
      const server = addressOf(host, port);
      const ask = (word: string): Promise<string | Error> => askWord(host, port, word, tls);
      const [srvr, conf] = await Promise.all([ask("srvr"), ask("conf")]);
      return readStatus(server, srvr, conf);
    }),
  );
}

/** Reads the replies to `srvr` and `conf`. An error says that there was none. */
export function readStatus(
  server: string,
  srvr: string | Error,
  conf: string | Error,
): ServerStatus {
  const report = srvr instanceof Error ? "" : srvr;
  const settings = conf instanceof Error ? "" : conf;
  const number = (name: string): number | null => {
    const value = new RegExp(`^${name}=(\\d+)$`, "m").exec(settings)?.[1];
    return value === undefined ? null : Number(value);
  };
  return {
    server,
    silent: srvr instanceof Error ? srvr.message : null,
    version: /^Zookeeper version: (\d+\.\d+\.\d+)/m.exec(report)?.[1] ?? null,
    mode: /^Mode: (\S+)/m.exec(report)?.[1] ?? null,
    isIdle: /not currently serving/.test(report),
    tickMs: number("tickTime"),
    minSessionMs: number("minSessionTimeout"),
    maxSessionMs: number("maxSessionTimeout"),
  };
}

/** The reply of a server to a four-letter word: empty if it closes the connection at once. */
function askWord(
  host: string,
  port: number,
  word: string,
  tls: ConnectionTls | undefined,
): Promise<string | Error> {
  return new Promise((resolve) => {
    const socket =
      tls === undefined ? connectPlain({ host, port }) : connectTls({ ...tls, host, port });
    let reply = "";
    const end = (result: string | Error): void => {
      socket.destroy();
      resolve(result);
    };
    socket.setTimeout(REPLY_MS, () => end(new Error("it does not answer")));
    socket.setEncoding("utf8");
    socket.once(tls === undefined ? "connect" : "secureConnect", () => socket.write(word));
    socket.on("data", (chunk: string) => {
      reply += chunk;
      if (reply.length > MOST_BYTES) end(reply);
    });
    socket.once("error", (error) => end(reply === "" ? error : reply));
    socket.once("close", () => end(reply));
  });
}
