import { connect as connectSocket } from "node:net";
import type { Actor } from "./actor.js";
import type { Stage, Story } from "./stage.js";

/** A lock without an expiry, whose holder is killed. */
interface Abandoned {
  prepare(stage: Stage): Promise<void>;
  /** Takes the lock by hand. */
  take(actor: Actor): Promise<boolean>;
}

function abandonedLock(
  texts: Pick<Story, "name" | "title" | "tells" | "failure" | "needs">,
  { prepare, take }: Abandoned,
): Story {
  return {
    ...texts,
    fix: "With a lease",
    lesson: "A lock needs an expiry that the store enforces, because nobody else notices a crash.",
    link: "leases.md",

    async direct(stage) {
      await prepare(stage);
      const a = stage.cast("A");
      await a.says();
      await a.kill();
      const outcome = await stage.cast("B", 1).says();
      const isFree = outcome === "gets the lock";
      stage.ends(
        isFree,
        isFree ? "the name was free after one ttl" : "the name is locked for ever",
      );
    },

    async act(actor) {
      const locks = actor.fixed ? await actor.connect({ ttl: "1s" }) : null;
      const isMine = locks === null ? await take(actor) : (await locks.acquire("report")) !== null;
      actor.say(isMine ? "gets the lock" : "is refused, as everybody after it");
      if (actor.name === "A") await actor.cue();
    },
  };
}

export const noTtl = abandonedLock(
  {
    name: "no-ttl",
    title: "SETNX without a ttl",
    tells:
      "A process locks a name on Redis with SET NX and no expiry. It crashes before it deletes the key. The key stays until a person deletes it.",
    failure: "SET lock:report A NX",
    needs: "redis",
  },
  {
    async prepare(stage) {
      stage.url = (await (await stage.lab()).redis()).url;
    },
    take: async (actor) =>
      (await sendToRedis(actor.url, `SET lock:report ${actor.name} NX`)) === "+OK",
  },
);

/** Sends one command of plain words; resolves to the first line of the reply. */
function sendToRedis(url: string, command: string): Promise<string> {
  const { hostname, port } = new URL(url);
  return new Promise((resolve, reject) => {
    const socket = connectSocket(Number(port), hostname, () => socket.write(`${command}\r\n`));
    socket.once("error", reject);
    socket.once("data", (reply) => {
      socket.destroy();
      resolve(String(reply).split("\r\n")[0]!);
    });
  });
}

export const row = abandonedLock(
  {
    name: "row",
    title: "The row without an expiry",
    tells:
      "A table has a row for each lock: the process that inserts it first holds the lock, and deletes it at the end. A process dies in between. No other process can tell its row from that of a living holder.",
    failure: "INSERT INTO locks … ON CONFLICT DO NOTHING",
  },
  {
    async prepare(stage) {
      await stage.data("CREATE TABLE locks (name TEXT PRIMARY KEY, holder TEXT)");
    },
    take: async (actor) => {
      const data = await actor.open();
      return data.run("INSERT OR IGNORE INTO locks VALUES ('report', ?)", actor.name) === 1;
    },
  },
);
