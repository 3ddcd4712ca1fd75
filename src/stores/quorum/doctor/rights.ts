import { COMMON_COMMANDS, type NeededRights } from "../../redis/doctor/rights.js";
import { PREFIX } from "../keys.js";

/** The rights that the scripts of a node need. */
export const NODE_RIGHTS: NeededRights = {
  prefix: PREFIX,
  keyOf: (name) => `${PREFIX}doctor:${name}`,
  commands: {
    ...COMMON_COMMANDS,
    MGET: (own) => [own, own],
    PTTL: (own) => [own],
    INFO: () => ["server"],
    PUBLISH: () => [`${PREFIX}wake:doctor`, ""],
  },
};
