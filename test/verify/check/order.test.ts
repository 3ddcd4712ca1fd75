import { describe, it } from "vitest";
import {
  asked,
  confirmed,
  granted,
  healed,
  injected,
  kept,
  killed,
  made,
  notGranted,
  ok,
  paused,
  queued,
  resized,
  resumed,
  revoked,
  SHARED,
  seen,
  some,
  unknown,
  violated,
} from "./story.js";

describe("L4, first come, first served", () => {
  const two = [asked(0, "a"), queued(1, "a"), asked(2, "b")];

  it("holds when the first in the queue is granted first", () => {
    ok("L4", [...two, granted(50, "a", 1, 140), granted(150, "b", 2, 240)]);
    ok(
      "L4",
      [...two, granted(50, "a", 1, 140)].toSpliced(3, 0, queued(3, "b"), granted(50, "b", 2, 140)),
    );
  });

  it("holds when one of several names was revoked, and all of them are claimed again", () => {
    const [x, y] = [{ together: "a", name: "x" }, { together: "a" }];
    const all = [asked(0, "a.x", { ...x, client: "a" }), asked(0, "a", { ...y, client: "a" })];
    const rest = [queued(1, "a"), asked(2, "b"), granted(50, "b", 1, 140), notGranted(150, "a")];
    ok("L4", [...all, revoked(1.5, "a.x", 7), ...rest]);
    violated("L4", [...all, ...rest], [1, 2, 3, 4, 5], /was in the queue/);
    // A lease that nobody renews may expire meanwhile.
    ok("L4", [...all.map((one) => ({ ...one, renew: false })), ...rest]);
  });

  it("is violated when the second in the queue is granted first", () => {
    violated(
      "L4",
      [...two, queued(3, "b"), granted(50, "b", 1, 140), granted(150, "a", 2, 240)],
      [0, 1, 2, 4, 5],
      /a \(a\) was in the queue for "name" at \+0\.001 s; b \(b\) requested it at \+0\.002 s and was granted token 1 before it, with token 2/,
    );
    violated(
      "L4",
      [...two, granted(50, "b", 1, 140), notGranted(150, "a")],
      [0, 1, 2, 3, 4],
      /while it waited, until \+0\.150 s/,
    );
    violated(
      "L4",
      [
        asked(0, "a", SHARED),
        queued(1, "a"),
        asked(2, "b", SHARED),
        granted(5, "b", 1, 90),
        granted(6, "a", 2, 90),
      ],
      [0, 1, 2, 3, 4],
      /before it/,
    );
  });

  it("goes by tokens, not by who received its grant first", () => {
    const readers = [asked(0, "a", SHARED), queued(1, "a"), asked(2, "b", SHARED)];
    ok("L4", [...readers, granted(5, "b", 2, 90), granted(6, "a", 1, 90)]);
    violated(
      "L4",
      [...readers, granted(5, "a", 2, 90), granted(6, "b", 1, 90)],
      [0, 1, 2, 3, 4],
      /before it/,
    );
  });

  it("takes the queue from a snapshot of the store", () => {
    violated(
      "L4",
      [
        asked(0, "a"),
        seen(1, { waiters: ["a"] }),
        asked(3, "b"),
        granted(50, "b", 1, 140),
        granted(150, "a", 2, 240),
      ],
      [0, 1, 2, 3, 4],
      /was in the queue/,
    );
  });

  it("does not judge two claims that came together", () => {
    unknown(
      "L4",
      [
        asked(0, "a"),
        asked(1, "b"),
        queued(1, "a"),
        granted(50, "b", 1, 140),
        granted(150, "a", 2, 240),
      ],
      /nobody requested/,
    );
    unknown(
      "L4",
      [asked(0, "a"), asked(1, "b"), granted(50, "b", 1, 140), granted(150, "a", 2, 240)],
      /nobody requested/,
    );
  });

  it("leaves to S2 a token that falls after the first was granted", () => {
    unknown(
      "L4",
      [
        asked(0, "a"),
        queued(1, "a"),
        granted(5, "a", 2, 90),
        asked(6, "b"),
        granted(95, "b", 1, 190),
      ],
      /nobody requested/,
    );
  });

  it("does not judge a waiter that gave up, died, or could not take its grant", () => {
    ok("L4", [...two, notGranted(40, "a"), granted(50, "b", 1, 140)]);
    ok("L4", [...two, granted(50, "b", 1, 140), notGranted(60, "a")]);
    // Paused after it had dropped its ticket, before it could report it.
    ok("L4", [
      ...two,
      paused(49, "a"),
      granted(50, "b", 1, 140),
      resumed(99, "a"),
      notGranted(100, "a"),
    ]);
    ok("L4", [...two, killed(40, "a"), granted(50, "b", 1, 140)]);
    ok("L4", [...two, made(20, "a", 1), granted(50, "b", 2, 140), granted(150, "a", 3, 240)]);
    ok("L4", [...two, kept(20, "a", 99), granted(50, "b", 2, 140), notGranted(150, "a")]);
    ok("L4", [...two, granted(50, "b", 1, 140)]);
  });

  it("excuses a ticket that may have expired", () => {
    const overtaken = [granted(150, "b", 1, 240), granted(250, "a", 2, 340)];
    ok("L4", [...two, paused(10, "a"), resumed(61, "a"), ...overtaken]);
    violated(
      "L4",
      [...two, paused(10, "a"), resumed(60, "a"), ...overtaken],
      [0, 1, 2, 5, 6],
      /before it/,
    );
    ok("L4", [...two, injected(10), healed(11), ...overtaken]);
    const spared = { sparesStore: true };
    violated(
      "L4",
      [...two, injected(10, spared), healed(60), ...overtaken],
      [0, 1, 2, 5, 6],
      /before it/,
    );
    ok("L4", [...two, injected(10, spared), healed(61), ...overtaken]);
    violated(
      "L4",
      [...two, paused(10, "b"), resumed(99, "b"), ...overtaken],
      [0, 1, 2, 5, 6],
      /before it/,
    );
  });

  describe("excuses a grant beside the other's that its paused client did not receive:", () => {
    const readers = [
      asked(0, "a", SHARED),
      queued(1, "a"),
      asked(2, "b", SHARED),
      paused(3, "a"),
      granted(5, "b", 2, 95),
    ];

    it("it was revoked later, and its token shows that it came first", () => {
      const later = [resumed(21, "a"), granted(22, "a", 4, 112)];
      ok("L4", [...readers, revoked(20, "a", 1), ...later]);
      violated(
        "L4",
        [...readers, revoked(20, "a", 3), ...later],
        [0, 1, 2, 4, 7],
        /before it, with token 4/,
      );
      violated("L4", [...readers, ...later], [0, 1, 2, 4, 6], /before it/);
    });

    it("it expired later", () => {
      ok("L4", [...readers, resumed(54, "a"), granted(60, "a", 3, 150)]);
      ok("L4", [...readers, resumed(54, "a"), notGranted(80, "a")]);
      violated(
        "L4",
        [...readers, resumed(53, "a"), granted(60, "a", 3, 150)],
        [0, 1, 2, 4, 6],
        /before it/,
      );
    });

    it("its client was paused before the next renewal of the ticket, but not later", () => {
      const running = readers.filter(({ kind }) => kind !== "paused");
      ok("L4", [...running, paused(6, "a"), resumed(90, "a"), granted(95, "a", 3, 180)]);
      violated(
        "L4",
        [...running, paused(56, "a"), resumed(140, "a"), granted(145, "a", 3, 230)],
        [0, 1, 2, 3, 6],
        /before it/,
      );
    });

    it("but not if the two grants exclude each other", () => {
      violated(
        "L4",
        [
          ...two,
          paused(3, "a"),
          granted(5, "b", 2, 95),
          resumed(90, "a"),
          granted(99, "a", 3, 190),
        ],
        [0, 1, 2, 4, 6],
        /before it/,
      );
    });

    it("but not if a snapshot of the store would have shown it", () => {
      const looked = readers.toSpliced(4, 0, made(4, "b", 2));
      const later = [resumed(90, "a"), granted(95, "a", 3, 180)];
      ok("L4", [...looked.toSpliced(3, 0, kept(2.5, "a", 90)), ...later]);
      violated("L4", [...looked, ...later], [0, 1, 2, 5, 7], /before it/);
    });
  });

  describe("where the store's replies to the waiter are known:", () => {
    const first = [asked(0, "a"), confirmed(1, "a"), asked(2, "b"), confirmed(3, "b")];

    // On SQLite, a worker was stopped in the middle of a transaction: nobody could renew a ticket for
    // more than a ttl, and the second waiter was the first to claim again.
    it("a ticket without a reply for a ttl may have expired, though its client ran", () => {
      ok("L4", [
        ...first,
        paused(20, "c"),
        resumed(170, "c"),
        granted(172, "b", 1, 270),
        granted(175, "a", 2, 270),
      ]);
      violated(
        "L4",
        [...first, granted(98, "b", 1, 190), granted(175, "a", 2, 270)],
        [0, 1, 2, 4, 5],
        /before it/,
      );
    });

    it("each reply proves the ticket for another ttl, from the sending of its request", () => {
      const renewed = [confirmed(60, "a", 40), confirmed(100, "a", 80)];
      const granting = (atMs: number) => [granted(atMs, "b", 1, 270), granted(190, "a", 2, 290)];
      violated("L4", [...first, ...renewed, ...granting(170)], [0, 1, 2, 4, 5, 6, 7], /before it/);
      ok("L4", [...first, ...renewed, ...granting(181)]);
      // A pause does not matter as long as the store keeps the ticket.
      violated(
        "L4",
        [
          ...first,
          paused(5, "a"),
          resumed(90, "a"),
          granted(95, "b", 1, 180),
          granted(99, "a", 2, 190),
        ],
        [0, 1, 2, 6, 7],
        /before it/,
      );
    });

    // On Redis, a renewal was sent 5 ms before the ticket's end, and a proxy held it back past that.
    it("a request that was under way when the ticket ended may have made another ticket", () => {
      const late = [confirmed(120, "a", 95), granted(150, "a", 2, 250)];
      ok("L4", [...first, granted(110, "b", 1, 200), ...late]);
      violated("L4", [...first, granted(90, "b", 1, 190), ...late], [0, 1, 2, 4, 6], /before it/);
    });

    it("a ticket that was queued again stands behind those that came in between", () => {
      const again = [confirmed(160, "a"), granted(170, "b", 1, 260), granted(180, "a", 2, 270)];
      ok("L4", [...first, ...again]);
      violated(
        "L4",
        [asked(0, "a"), confirmed(1, "a"), confirmed(150, "a"), asked(155, "b"), ...again.slice(1)],
        [0, 2, 3, 4, 5],
        /before it/,
      );
    });

    // On Redis with a replica, both readers were granted in one step. The server hung before the first
    // one learned of it, and its grant expired.
    it("a reader that was granted with another may have missed that grant", () => {
      const readers = [
        asked(0, "a", SHARED),
        confirmed(1, "a"),
        asked(2, "b", SHARED),
        confirmed(3, "b"),
        granted(40, "b", 2, 130),
      ];
      ok("L4", [...readers, injected(100), healed(140), granted(150, "a", 3, 240)]);
      ok("L4", [...readers, notGranted(90, "a")]);
      violated("L4", [...readers, granted(60, "a", 3, 150)], [0, 1, 2, 4, 5], /before it/);
      violated(
        "L4",
        [...readers, confirmed(46, "a", 45), granted(150, "a", 3, 240)],
        [0, 1, 2, 4, 5, 6],
        /before it/,
      );
    });

    it("a multi-lock that loses one name may drop its ticket for another", () => {
      const all = [
        asked(0, "a.x", { together: "a", name: "x", client: "a" }),
        asked(0, "a", { together: "a", client: "a" }),
        confirmed(1, "a"),
        asked(2, "b"),
      ];
      const overtaken = [confirmed(75, "a"), granted(80, "b", 1, 170), granted(90, "a", 2, 180)];
      ok("L4", [...all, paused(10, "a"), resumed(70, "a"), ...overtaken]);
      violated("L4", [...all, ...overtaken.slice(1)], [1, 2, 3, 4, 5], /before it/);
    });
  });

  it("is unknown where the order is not promised", () => {
    unknown("L4", [...two, granted(50, "b", 1, 140), granted(150, "a", 2, 240)], /not promised/, {
      fair: false,
    });
  });

  it("goes on searching behind those that are excused", () => {
    violated(
      "L4",
      [
        asked(0, "z"),
        queued(0, "z"),
        paused(0, "z"),
        asked(0, "a"),
        queued(1, "a"),
        asked(2, "b"),
        granted(150, "b", 1, 240),
        granted(250, "a", 2, 340),
        resumed(260, "z"),
        granted(350, "z", 3, 440),
      ],
      [3, 4, 5, 6, 7],
      /a \(a\) was in/,
    );
  });

  it("does not judge a ticket that was dropped, or granted and then released by force", () => {
    const many = [asked(0, "a", some(3, 4)), queued(1, "a"), asked(2, "b", some(1, 4))];
    const passed = [granted(50, "b", 1, 140), notGranted(150, "a", "refused")];
    ok("L4", [...many, resized(20, 2), ...passed]);
    violated("L4", [...many, resized(20, 3), ...passed], [0, 1, 2, 4, 5], /while it waited/);
    ok("L4", [
      ...two,
      kept(40, "a", 140),
      revoked(45, "a", 1),
      granted(50, "b", 2, 140),
      made(150, "a", 3),
      granted(151, "a", 3, 240),
    ]);
    // Both in one step.
    ok("L4", [...two, revoked(45, "a", 1), granted(50, "b", 2, 140), notGranted(150, "a")]);
  });
});
