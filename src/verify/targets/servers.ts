import { fault } from "../fault.js";
import { FalseClock } from "../lab/clock.js";
import type { Disk } from "../lab/disk.js";
import type { Lab } from "../lab/lab.js";
import type { Server } from "../lab/server.js";
import { EXCLUSION, type FaultKind, jumpMs } from "../runner/kinds.js";
import type { Strikable, Way } from "../runner/way.js";

/* The parts that targets with servers of their own share. */

export const LOST_DATA = "server loses its data";
export const DISK_FULL = "disk full";
export const RESTARTED = "server killed and restarted";

export const SHORT = { min: 0.05, max: 0.7 };
export const LONG = { min: 0.2, max: 2 };
export const ONCE = { min: 0.01, max: 0.01 };

/** A server that can't write its log ends. `restarted` is called when it runs again. */
export function diskKind(
  disk: Disk,
  server: Server,
  restarted: () => Promise<void> = async () => {},
): FaultKind {
  const full = disk.full();
  return {
    name: DISK_FULL,
    hits: "server",
    weight: 0.5,
    lasts: { min: 0.3, max: 1.5 },
    // The server can't be started on a full disk.
    excludes: [RESTARTED],
    make: () =>
      fault(
        `the disk of ${server.name} is full`,
        () => full.inject(),
        async () => {
          await full.heal();
          if (server.state === "down") await server.start();
          await restarted();
        },
      ),
  };
}

/** `clock`: null without libfaketime; then the fault is left out. */
export const clockKind = (clock: FalseClock | null, excludes: readonly string[]): FaultKind => ({
  name: "server clock jumps",
  hits: "server",
  needsClock: true,
  setsClock: true,
  weight: 0.5,
  lasts: LONG,
  breaks: EXCLUSION,
  because: "leases end by the server's clock: one that is set ahead ends them early",
  excludes,
  make: (_member, random) => {
    const clockByMs = jumpMs(random);
    return clock && { ...clock.jump(clockByMs), clockByMs };
  },
});

/** Resumes or starts a server that a fault has left paused or dead. */
export async function bringBack(server: Pick<Server, "state" | "resume" | "start">): Promise<void> {
  if (server.state === "paused") await server.resume();
  if (server.state === "down") await server.start();
}

interface HostProxy extends Strikable {
  readonly address: string;
  readonly port: number;
  close(): Promise<void>;
}

/** The worker, and whether it gets a wall clock of its own, which can be set. */
interface WayOptions {
  readonly lab: Lab;
  readonly client: string;
  readonly isClocked: boolean;
}

/** Opens the way of a worker through these proxies. `urlOf` gets their addresses, as a URL lists them. */
export async function wayThrough(
  proxies: readonly HostProxy[],
  { lab, client, isClocked }: WayOptions,
  urlOf: (hosts: string) => string,
): Promise<Way> {
  const clock = isClocked ? await FalseClock.open(lab, `${client}'s clock`) : null;
  return {
    url: urlOf(proxies.map(({ address, port }) => `${address}:${port}`).join(",")),
    proxies,
    ...(clock === null ? {} : { clock, site: clock.site() }),
    close: async () => {
      await Promise.all(proxies.map((proxy) => proxy.close()));
    },
  };
}
