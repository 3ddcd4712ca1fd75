import { type Cells, type RegisterPlace, type ServerFence, ServerRegister } from "./register.js";

const OPENERS: Readonly<Record<ServerFence, (place: RegisterPlace) => Promise<Cells>>> = {
  redis: async (place) => (await import("./redis.js")).openRedisCells(place),
  postgres: async (place) => (await import("./postgres.js")).openPostgresCells(place),
  etcd: async (place) => (await import("./etcd.js")).openEtcdCells(place),
  zookeeper: async (place) => (await import("./zookeeper.js")).openZooKeeperCells(place),
};

/** Connects to the server of a register. */
export const openRegister = async (place: RegisterPlace): Promise<ServerRegister> =>
  new ServerRegister(await OPENERS[place.fence](place));
