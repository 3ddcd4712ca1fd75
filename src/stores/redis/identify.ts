import { connect as connectTcp } from "node:net";
import { connect as connectTls } from "node:tls";

const TIMEOUT_MS = 1_000;

/** `closed TLS`: it closes the connection after the handshake, as if it required a certificate. */
export type Answering = "redis" | "http" | "TLS" | "closed TLS";

/** Finds out which kind of server answers at a port, after a client library failed. Null: no known kind. */
export async function identify(host: string, port: number): Promise<Answering | null> {
  const [said, tls] = await Promise.all([firstBytes(host, port), speaksTls(host, port)]);
  if (tls !== null) return tls;
  if (said.startsWith("HTTP/")) return "http";
  return /^[+-]/.test(said) ? "redis" : null;
}

/** The reply to a line that Redis answers even to clients without a password, and a web server too. */
function firstBytes(host: string, port: number): Promise<string> {
  return new Promise((resolve) => {
    const socket = connectTcp({ host, port });
    const done = (said: string): void => {
      socket.destroy();
      resolve(said);
    };
    socket.setTimeout(TIMEOUT_MS, () => done(""));
    socket.on("error", () => done(""));
    socket.on("close", () => done(""));
    socket.once("data", (data) => done(data.toString("latin1")));
    socket.write("PING\r\n\r\n");
  });
}

/** Sends no secret, so the server's certificate does not matter. */
function speaksTls(host: string, port: number): Promise<"TLS" | "closed TLS" | null> {
  return new Promise((resolve) => {
    const socket = connectTls({ host, port, rejectUnauthorized: false });
    let greeted = false;
    const done = (how: "TLS" | "closed TLS" | null): void => {
      socket.destroy();
      resolve(how);
    };
    socket.setTimeout(TIMEOUT_MS, () => done(greeted ? "TLS" : null));
    // An alert of the server is TLS too; one of our own is about a reply that is not TLS.
    socket.on("error", ({ message }) =>
      done(greeted || /alert number/.test(message) ? "closed TLS" : null),
    );
    socket.on("close", () => done(greeted ? "closed TLS" : null));
    socket.once("data", () => done("TLS"));
    socket.on("secureConnect", () => {
      greeted = true;
      socket.write("PING\r\n\r\n");
    });
  });
}
