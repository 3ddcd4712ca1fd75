import type { Server } from "../lab/server.js";
import { type Fault, fault } from "./fault.js";

/** A server of the lab, or any process; the latter can't be started again. */
export type Victim = Pick<Server, "name" | "state" | "pause" | "resume" | "kill"> &
  Partial<Pick<Server, "start">>;

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

/** Healed: started again, if it is a server. */
export function killed(victim: Victim): Fault {
  return fault(
    `${victim.name} killed`,
    () => victim.kill(),
    () => victim.start?.(),
  );
}

/** Over at once. */
export function restarted(server: Pick<Server, "name" | "restart">): Fault {
  return fault(`${server.name} restarted`, () => server.restart());
}

/** Over at once; its data does not come back. */
export function wiped(server: Pick<Server, "name" | "wipe">): Fault {
  return fault(`${server.name} wiped`, () => server.wipe());
}
