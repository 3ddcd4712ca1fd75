import { Actor, type Role } from "./actor.js";
import { STORIES } from "./index.js";

const role = JSON.parse(process.argv[2]!) as Role;
await STORIES.find(({ name }) => name === role.story)!.act(new Actor(role));
process.exit(0);
