import { describe, it } from "vitest";
import {
  aborting,
  asked,
  clockSet,
  granted,
  healed,
  injected,
  killed,
  later,
  lost,
  notGranted,
  ok,
  paused,
  released,
  releasing,
  renewed,
  resized,
  resumed,
  SHARED,
  some,
  unknown,
  violated,
} from "./story.js";

describe("L1, a dead holder's name is free again within its ttl", () => {
  const dead = [asked(0, "a"), granted(1, "a", 1, 90), asked(2, "w"), killed(50, "a")];

  it("holds when somebody is granted the name within the ttl and a little more", () => {
    ok("L1", [...dead, granted(160, "w", 2, 250)]);
    ok("L1", [
      ...dead,
      granted(80, "w", 2, 170),
      releasing(165, "w"),
      released(166, "w"),
      later(900),
    ]);
    ok("L1", [...dead, notGranted(100, "w"), asked(500, "v"), granted(501, "v", 2, 590)]);
  });

  it("is violated when a waiter is granted the name later, or never", () => {
    violated(
      "L1",
      [...dead, granted(161, "w", 2, 250)],
      [0, 1, 2, 3, 4],
      /a \(a\), who held "name" with token 1 for 100 ms, was killed at \+0\.050 s; w \(w\) waited/,
    );
    violated(
      "L1",
      [...dead, later(200), later(300)],
      [0, 1, 2, 3, 4],
      /though it was free from \+0\.150 s/,
    );
    violated(
      "L1",
      [dead[0]!, dead[1]!, killed(50, "a"), asked(300, "w"), later(311)],
      [0, 1, 2, 3, 4],
      /waited/,
    );
  });

  it("allows a waiter with a longer ttl no more time, though it came before the dead holder's grant", () => {
    const behind = [
      asked(0, "w", { ttlMs: 900 }),
      asked(1, "a"),
      granted(2, "a", 1, 90),
      killed(50, "a"),
    ];
    ok("L1", [...behind, granted(160, "w", 2, 900)]);
    violated("L1", [...behind, granted(161, "w", 2, 900)], [0, 1, 2, 3, 4], /was free from/);
  });

  it("allows more time to a waiter that a fault may have kept from learning of the dead holder's grant", () => {
    const waits = [asked(0, "w", { ttlMs: 900 }), asked(1, "a")];
    const fault = [injected(20), healed(30)];
    const dies = [granted(40, "a", 1, 130), killed(90, "a")];
    ok("L1", [...waits, ...fault, ...dies, granted(250, "w", 2, 900)]);
    violated(
      "L1",
      [...waits, ...fault, ...dies, granted(251, "w", 2, 900)],
      [0, 1, 4, 5, 6],
      /was free from/,
    );
    // A waiter that came later learned of it from the reply to its claim.
    const later = [asked(1, "a"), ...fault, dies[0]!, asked(50, "w", { ttlMs: 900 }), dies[1]!];
    violated("L1", [...later, granted(201, "w", 2, 900)], [0, 3, 4, 5, 6], /was free from/);
  });

  it("does not judge a name that atLeast closes, or that somebody waits for together with another", () => {
    const closing = [asked(0, "a", { atLeastMs: 400 }), ...dead.slice(1)];
    ok("L1", [...closing, granted(560, "w", 2, 650)]);
    violated("L1", [...closing, granted(561, "w", 2, 650)], [0, 1, 2, 3, 4], /was free from/);
    ok("L1", [...closing, clockSet(60, -100), granted(660, "w", 2, 750)]);
    const both = [
      asked(3, "v", { together: "vw" }),
      asked(3, "u", { client: "v", name: "other", together: "vw" }),
    ];
    ok("L1", [
      ...dead,
      ...both,
      notGranted(500, "v"),
      notGranted(500, "u"),
      granted(505, "w", 2, 600),
    ]);
  });

  it("does not judge a waiter that will be refused", () => {
    const permits = some(1, 4);
    const waits = [
      asked(0, "a", permits),
      granted(1, "a", 1, 90),
      asked(2, "w", permits),
      killed(50, "a"),
    ];
    violated("L1", [...waits, later(300)], [0, 1, 2, 3, 4], /waited/);
    unknown("L1", [...waits, resized(60, 3), later(300)], /no holder was killed/);
  });

  it("shows the renewal by which the dead holder held", () => {
    violated(
      "L1",
      [
        asked(0, "a"),
        granted(1, "a", 1, 40),
        renewed(30, "a", 90),
        asked(31, "w"),
        killed(50, "a"),
        later(161),
      ],
      [0, 1, 2, 3, 4, 5],
      /killed/,
    );
  });

  it("allows the time of an election, where there is one", () => {
    ok("L1", [...dead, granted(180, "w", 2, 270)], { electionMs: 20 });
    violated("L1", [...dead, granted(181, "w", 2, 270)], [0, 1, 2, 3, 4], /killed/, {
      electionMs: 20,
    });
  });

  it("allows the ticket of a waiter that died too its own ttl", () => {
    const two = [...dead.slice(0, 3), asked(3, "v"), killed(50, "a"), killed(120, "v")];
    ok("L1", [...two, granted(230, "w", 2, 320)]);
    violated("L1", [...two, granted(231, "w", 2, 320)], [0, 1, 2, 4, 6], /free from \+0\.220 s/);
  });

  it("does not judge a waiter that gives up, or is itself paused or dead", () => {
    unknown("L1", [...dead, notGranted(100, "w"), later(900)], /somebody else wanted/);
    unknown("L1", [...dead, aborting(100, "w"), later(900)], /somebody else wanted/);
    unknown("L1", [...dead, killed(60, "w"), later(900)], /somebody else wanted/);
    unknown("L1", [...dead, paused(60, "w"), later(900)], /somebody else wanted/);
    unknown(
      "L1",
      [
        asked(0, "a"),
        granted(1, "a", 1, 90),
        asked(2, "w", { waitMs: 150 }),
        killed(50, "a"),
        later(900),
      ],
      /somebody else/,
    );
    unknown("L1", dead, /somebody else wanted/);
    ok("L1", [...dead, paused(60, "w"), resumed(400, "w"), granted(410, "w", 2, 500)]);
    violated(
      "L1",
      [...dead, paused(60, "w"), resumed(400, "w"), granted(411, "w", 2, 500)],
      [0, 1, 2, 3, 6],
      /waited/,
    );
  });

  it("does not judge a name while others hold it, or something may be left behind", () => {
    const shared = [
      asked(0, "a", SHARED),
      granted(1, "a", 1, 90),
      asked(0, "b", SHARED),
      granted(2, "b", 2, 390),
    ];
    ok("L1", [
      ...shared,
      asked(3, "w"),
      killed(50, "a"),
      releasing(300, "b"),
      released(301, "b"),
      granted(302, "w", 3, 390),
    ]);
    ok("L1", [
      ...dead.slice(0, 3),
      asked(3, "v"),
      killed(50, "a"),
      notGranted(100, "v", "unknown"),
      granted(205, "w", 2, 290),
    ]);
  });

  it("does not count the wait before the death", () => {
    ok("L1", [
      asked(0, "w"),
      asked(99, "a"),
      granted(100, "a", 1, 190),
      killed(150, "a"),
      granted(200, "w", 2, 290),
    ]);
  });

  it("counts from the healing of a fault", () => {
    const struck = [...dead, injected(100), healed(300)];
    ok("L1", [...struck, granted(460, "w", 2, 550)]);
    violated("L1", [...struck, granted(461, "w", 2, 550)], [0, 1, 2, 3, 6], /waited/);
    unknown("L1", [...dead, injected(100), later(900)], /somebody else/);
  });

  it("does not judge a holder that released, or lost its lease, before it died", () => {
    const lease = [asked(0, "a"), granted(1, "a", 1, 90), asked(2, "w")];
    unknown("L1", [...lease, releasing(40, "a"), killed(50, "a"), later(900)], /no holder/);
    unknown("L1", [...lease, lost(90, "a"), killed(95, "a"), later(900)], /no holder/);
  });
});

describe("L2, waiters go on within seconds of healing", () => {
  const story = [injected(0), asked(1, "w"), healed(100)];

  it("holds when waiters are granted the name, or give up", () => {
    ok("L2", [...story, granted(150, "w", 1, 240)]);
    ok("L2", [...story, notGranted(120, "w"), later(900)]);
  });

  it("is violated when a waiter goes on waiting for a name that nobody holds", () => {
    violated(
      "L2",
      [...story, granted(151, "w", 1, 240)],
      [1, 2, 3],
      /"fault" was healed at \+0\.100 s; w \(w\) waited/,
    );
    violated(
      "L2",
      [...story, later(120), later(151)],
      [1, 2, 4],
      /though it was free from \+0\.100 s/,
    );
    violated(
      "L2",
      [injected(0), healed(100), asked(200, "w"), later(251)],
      [1, 2, 3],
      /free from \+0\.200 s/,
    );
  });

  it("allows the time of a holder, and of what may be left behind", () => {
    const held = [asked(0, "a"), granted(0, "a", 1, 290), ...story];
    ok("L2", [...held, releasing(200, "a"), released(201, "a"), granted(250, "w", 2, 340)]);
    violated(
      "L2",
      [...held, releasing(200, "a"), released(201, "a"), granted(252, "w", 2, 340)],
      [3, 4, 7],
      /free from \+0\.201 s/,
    );
    ok("L2", [...held, lost(290, "a"), granted(440, "w", 2, 530)]);
    violated(
      "L2",
      [...held, lost(290, "a"), granted(441, "w", 2, 530)],
      [3, 4, 6],
      /free from \+0\.390 s/,
    );
    ok("L2", [
      ...held,
      releasing(200, "a"),
      released(201, "a", "unknown"),
      granted(350, "w", 2, 440),
    ]);
    ok("L2", [...held, killed(200, "a"), granted(350, "w", 2, 440)]);
  });

  it("counts from the last of several faults", () => {
    const other = { kind: "injected", atMs: 50, fault: "other" } as const;
    const all = [injected(0), asked(1, "w"), other, healed(100)];
    ok("L2", [...all, { kind: "healed", atMs: 500, fault: "other" }, granted(550, "w", 1, 640)]);
    unknown("L2", [...all, later(900)], /nobody waited/);
    unknown("L2", [...all, granted(200, "w", 1, 290)], /nobody waited/);
    ok("L2", [...story, injected(140), healed(300), granted(350, "w", 1, 440)]);
  });

  it("does not judge a waiter that is paused, dead or giving up", () => {
    unknown("L2", [...story, paused(110, "w"), later(900)], /nobody waited/);
    ok("L2", [...story, killed(110, "w"), later(900)]);
    ok("L2", [...story, paused(110, "w"), resumed(300, "w"), granted(350, "w", 1, 440)]);
    unknown("L2", [injected(0), asked(1, "w", { waitMs: 120 }), healed(100), later(900)], /nobody/);
    unknown("L2", [asked(1, "w"), later(900)], /nobody waited when a fault was healed/);
  });
});
