import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { EVENT_NAMES, type Logger } from "../core/events.js";
import type { Case } from "./subject.js";

interface Heard {
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

/** On a busy machine, a ticket may be granted before its process has subscribed: then the next one is tried. */
const MOST_HANDOVERS = 5;

/** Metrics, spans and log lines are made from these events. */
export const eventCases: readonly Case[] = [
  {
    name: "a grant, a renewal, a handover and close() are published, and no warning is logged",
    async run(bench) {
      // Other cases may publish on the same channels.
      const name = `events-${randomUUID()}`;
      const heard: Heard[] = [];
      const endings = EVENT_NAMES.map((event) => {
        const listener = (fields: unknown): void => {
          heard.push({ event, fields: fields as Heard["fields"] });
        };
        subscribe(`holdfast:${event}`, listener);
        return () => unsubscribe(`holdfast:${event}`, listener);
      });
      try {
        const lines: string[] = [];
        const at = (level: string) => (message: string) => void lines.push(`${level} ${message}`);
        const logger: Logger = { debug: at("debug"), info: at("info"), warn: at("warn") };
        // A lease that can't be renewed in time on a busy machine would be a warning.
        const options = { ttl: bench.ttlMs * 20, logger };
        const [one, two] = [await bench.client(options), await bench.client(options)];
        const { store: kind, waiting } = two.store.traits;
        const fieldsOf = (event: string, token: bigint): Heard["fields"] =>
          heard.find((each) => each.event === event && each.fields["token"] === token)!.fields;
        const eventsOf = (token: bigint): string[] => {
          const { id } = fieldsOf("granted", token);
          const own = heard.filter(({ fields }) => fields["name"] === name && fields["id"] === id);
          for (const { fields } of own) {
            assert.deepEqual([fields["store"], fields["mode"]], [kind, "exclusive"]);
          }
          return own.map(({ event }) => event);
        };

        for (let left = MOST_HANDOVERS; ; left--) {
          const held = await one.locks.acquire(name);
          await bench.settled(held.renew());
          const claims = two.store.sent.claim;
          const taking = bench.later(two.locks.acquire(name));
          await bench.until(
            "the waiter's claim is answered",
            () => two.store.sent.claim > claims && two.store.underWay === 0,
          );
          assert.equal(await bench.settled(held.release()), "released");
          const next = await bench.settled(taking, bench.ttlMs * 15);
          assert.deepEqual(eventsOf(held.token), ["asked", "granted", "renewed", "released"]);
          assert.equal(fieldsOf("granted", held.token)["handedOver"], false, "it had not waited");
          const { handedOver } = fieldsOf("granted", next.token);
          if (handedOver === (waiting === "pushed")) {
            await bench.settled(two.locks.close());
            assert.deepEqual(eventsOf(next.token), ["asked", "granted", "lost"]);
            assert.equal(fieldsOf("lost", next.token)["reason"], "closed");
            break;
          }
          assert(left > 1 && waiting === "pushed", `handedOver is ${handedOver}, and ${waiting}`);
          await bench.settled(next.release());
        }
        await bench.settled(one.locks.close());
        const replied = heard.filter(({ event, fields }) => {
          return event === "request" && fields["store"] === kind && fields["outcome"] === "replied";
        });
        const commands = new Set(replied.map(({ fields }) => fields["command"]));
        for (const command of ["claim", "renew", "release", "close"]) assert(commands.has(command));
        assert.deepEqual(
          lines.filter((line) => !line.startsWith("debug ")),
          [],
        );
      } finally {
        for (const end of endings) end();
      }
    },
  },
];
