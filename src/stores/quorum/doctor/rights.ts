import { COMMON_COMMANDS, type NeededRights } from "../../redis/doctor/rights.js";
import { PREFIX, recordOf } from "../keys.js";

/** The rights that the scripts of a node need. */
export const NODE_RIGHTS: NeededRights = {
  prefix: PREFIX,
  keyOf: recordOf,
  commands: {
    ...COMMON_COMMANDS,
    INFO: () => ["server"],
    PTTL: (own) => [own],
    PEXPIRE: (own) => [own, "never"],
    LPOS: (own) => [own, "a"],
    RPUSH: (own) => [own],
    LPOP: (own) => [own],
    PUBLISH: () => [`${PREFIX}wake:doctor`, ""],
  },
};
