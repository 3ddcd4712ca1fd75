import type { Place } from "./child-server.js";

/** Sends a text to the server's port, from its site, and resolves to the reply when the server hangs up. */
export function talk({ site, ports, run }: Place, text: string): Promise<string> {
  const script = 'exec 3<>"/dev/tcp/$0/$1" && printf %s "$2" >&3 && cat <&3';
  return run(["bash", "-c", script, site.address, String(ports[0]), text]);
}
