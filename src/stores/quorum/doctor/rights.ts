import { COMMON_COMMANDS, type NeededRights } from "../../redis/doctor/rights.js";
import { PREFIX } from "../keys.js";

const { DEL, ...COMMON } = COMMON_COMMANDS;

/** The rights that the scripts of a node need. */
export const NODE_RIGHTS: NeededRights = {
  prefix: PREFIX,
  keyOf: (name) => `${PREFIX}doctor:${name}`,
  commands: {
    ...COMMON,
    // RPUSH has no form that changes nothing, except on a key that is no list.
    SET: (own) => [own, "1", "PX", "1000"],
    RPUSH: (own) => [own, "a"],
    LPOS: (own) => [own, "a"],
    LPOP: (own) => [own],
    PTTL: (own) => [own],
    PEXPIRE: (own) => [own, "1000"],
    DEL: DEL!,
    INFO: () => ["server"],
    PUBLISH: () => [`${PREFIX}wake:doctor`, ""],
  },
};
