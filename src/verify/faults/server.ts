import { type Fault, fault } from "../fault.js";
import type { Disk } from "../lab/disk.js";
import type { Server } from "../lab/server.js";

/** A server of the lab, or any process; a process can't be started again. */
export type Victim = Pick<Server, "name" | "state" | "pause" | "resume" | "kill"> &
  Partial<Pick<Server, "start">>;

/** Pauses the victim (SIGSTOP); healing resumes it (SIGCONT). */
export function paused(victim: Victim): Fault {
  return fault(
    `${victim.name} paused`,
    () => victim.pause(),
    async () => {
      // Another fault may have killed it in the meantime.
      if (victim.state === "paused") await victim.resume();
    },
  );
}

/** Kills the victim; healing starts it again if it is a server. */
export function killed(victim: Victim): Fault {
  return fault(
    `${victim.name} killed`,
    () => victim.kill(),
    () => victim.start?.(),
  );
}

/** Restarts the server; there is nothing to heal. */
export function restarted(server: Pick<Server, "name" | "restart">): Fault {
  return fault(`${server.name} restarted`, () => server.restart());
}

/** Wipes the server; there is nothing to heal, and the data does not come back. */
export function wiped(server: Pick<Server, "name" | "wipe">): Fault {
  return fault(`${server.name} wiped`, () => server.wipe());
}

/** Cuts the power of a disk and of its users; healing starts all of them that can be started. */
export function powerLoss(
  disk: Disk,
  users: readonly Pick<Victim, "name" | "kill" | "start">[],
): Fault {
  return fault(
    `power loss of ${users.map(({ name }) => name).join(", ")}`,
    async () => {
      await disk.cutPower();
      await Promise.all(users.map((user) => user.kill()));
    },
    async () => {
      // Users that an earlier attempt has started.
      await Promise.all(users.map((user) => user.kill()));
      await disk.powerOn();
      await Promise.all(users.map((user) => user.start?.()));
    },
  );
}
