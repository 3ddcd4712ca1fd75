import { describe, expect, it } from "vitest";
import { drawText } from "../../../src/verify/check/draw.js";
import type { Event } from "../../../src/verify/check/history.js";
import { drawBeliefs } from "../../../src/verify/check/picture.js";
import {
  asked,
  clockSet,
  counted,
  entered,
  granted,
  healed,
  injected,
  judge,
  killed,
  left,
  looked,
  lost,
  made,
  notGranted,
  paused,
  queued,
  released,
  releasing,
  renewed,
  resized,
  resumed,
  revoked,
  SHARED,
  seen,
  some,
  wrote,
} from "./story.js";

const story = [
  asked(1_000, "a", { client: "worker-1", name: "order:1" }),
  granted(1_001, "a", 16, 1_900),
  asked(1_100, "b", { client: "worker-2", name: "order:1", waitMs: Number.POSITIVE_INFINITY }),
  paused(1_200, "worker-1"),
  injected(1_250),
  healed(1_260),
  granted(1_850, "b", 17, 2_700),
  resumed(2_000, "worker-1"),
  lost(2_001, "a"),
  killed(2_100, "worker-2"),
];

describe("a history as lines", () => {
  it("has columns for the time, the client, the event and its details", () => {
    expect(drawText(story)).toBe(`\
+0.000 s  worker-1  asked     order:1  a  exclusive, ttl 100 ms, wait 1000 ms
+0.001 s  worker-1  granted   order:1  a  token 16, until +0.900 s
+0.100 s  worker-2  asked     order:1  b  exclusive, ttl 100 ms, wait Infinity ms
+0.200 s  worker-1  paused
+0.250 s  fault     injected  fault
+0.260 s  fault     healed    fault
+0.850 s  worker-2  granted   order:1  b  token 17, until +1.700 s
+1.000 s  worker-1  resumed
+1.001 s  worker-1  lost      order:1  a  expired
+1.100 s  worker-2  killed
`);
  });

  it("has a sentence for each kind of event", () => {
    const about = (event: Event): string =>
      drawText([asked(0, "a", SHARED), event])
        .split("\n")[1]!
        .replaceAll(/ {2,}/g, "|");
    expect(about(asked(9_500, "c", some(2, 4)))).toBe(
      "+9.500 s|c|asked|name|c|2 of 4 permits, ttl 100 ms, wait 1000 ms",
    );
    expect(about(asked(1, "c", { within: "a" }))).toMatch(/, within a$/);
    expect(about(asked(1, "c", { atLeastMs: 9, renew: false, together: "cd" }))).toMatch(
      /, at least 9 ms, not renewed, all of cd$/,
    );
    expect(about(made(1, "a", 5, { limit: 4 }))).toMatch(/\|token 5, of 4 permits$/);
    expect(about(revoked(1, "a", 5))).toBe("+0.001 s|a|revoked|name|a|token 5");
    expect(about(resized(1, 4))).toMatch(/^\+0\.001 s\|store\|resized\|name\|.*to 4 permits$/);
    expect(about(clockSet(1, -9))).toMatch(/wall clock by -9 ms$/);
    expect(about(seen(1, { closed: ["a"] }))).toMatch(/; closed by: a$/);
    expect(about(queued(1, "a"))).toBe("+0.001 s|a|queued|name|a");
    expect(about(notGranted(1, "a", "busy"))).toMatch(/\|busy$/);
    expect(about(renewed(1, "a", 90))).toMatch(/\|until \+0\.090 s$/);
    expect(about(looked(1, "a", false))).toMatch(/\|not held$/);
    expect(about(releasing(1, "a"))).toMatch(/\|releasing\|name\|a$/);
    expect(about(released(1, "a", "unknown"))).toMatch(/\|unknown$/);
    expect(about(entered(1, "a", 5, { floor: 4n, accepted: false }))).toBe(
      "+0.001 s|a|entered|file|a|step 1, token 5 (floor 4): refused",
    );
    expect(about(wrote(1, "a", 5, [7, 8]))).toMatch(
      /\|step 1, token 5, read 7, wrote 8: accepted$/,
    );
    expect(about(seen(1, { holders: ["a"] }))).toMatch(
      /^\+0\.002 s\|store\|seen\|name\|since \+0\.001 s; holders: a with token 1; waiters: none$/,
    );
    expect(about(counted(1, 2, 3, 4))).toMatch(/\|4 commands, 3 handovers, 2 waiters$/);
    expect(about(left(1, 2))).toMatch(/\|0 waiters, 2 timers, 0 sockets$/);
  });

  it("shows a part with the clients and the start time of the whole", () => {
    expect(drawText([story[6]!], { of: story })).toBe(
      "+0.850 s  worker-2  granted  order:1  b  token 17, until +1.700 s\n",
    );
    expect(drawText([])).toBe("");
  });

  it("lets nothing in a name move the cursor or break the line", () => {
    const text = drawText([asked(0, "a", { name: "x\u001b[2J\ny\u202ez" })]);
    expect(text).toContain("x\\u{1b}[2J\\u{a}y\\u{202e}z");
    expect(text.split("\n")).toHaveLength(2);
  });
});

describe("a history as a picture", () => {
  it("has a lane for each client, with the times in which it believes that it holds", () => {
    const svg = drawBeliefs(story);
    expect(svg).toMatch(/^<svg xmlns/);
    expect(svg).toContain(">worker-1</text>");
    expect(svg).toContain("<title>b: order:1, token 17, +0.850 s to +1.100 s</title>");
    expect(svg.match(/class="hold"/g)).toHaveLength(2);
    expect(svg.match(/class="pause"/g)).toHaveLength(1);
    expect(svg.match(/class="fault"/g)).toHaveLength(1);
    expect(svg.match(/class="dead"/g)).toHaveLength(1);
    expect(svg).not.toContain('class="wrong"');
    expect(svg).toContain("prefers-color-scheme:dark");
  });

  it("marks the evidence of a verdict, and the time in which the promise was broken", () => {
    const verdict = judge("S1", story);
    const svg = drawBeliefs(story, verdict);
    expect(svg.match(/class="told"/g)).toHaveLength(2);
    expect(svg.match(/class="mark"/g)).toHaveLength(verdict.evidence.length);
    expect(svg.match(/class="wrong"/g)).toHaveLength(1);
    expect(svg).toContain(`<title>S1: ${verdict.why.replaceAll('"', "&quot;")}</title>`);
  });

  it("is well formed, whatever the names are", () => {
    const bad = '<script>&"\u0000\ud800';
    const svg = drawBeliefs([asked(0, bad, { name: bad }), granted(1, bad, 1, 90), lost(90, bad)]);
    expect(svg).not.toContain("<script>");
    expect(svg).not.toMatch(/\p{Cc}(?!$)|\p{Cs}/u);
    expect(svg).toContain("&lt;script&gt;&amp;&quot;\ufffd\ufffd");
  });

  it("stays small for a long history", () => {
    const many = Array.from({ length: 5_000 }, (_, i) => [
      asked(i, `op-${i}`, { client: `client-${i % 50}` }),
      granted(i, `op-${i}`, i, i + 1),
    ]).flat();
    const svg = drawBeliefs(many);
    expect(svg.length).toBeLessThan(500_000);
    expect(svg).toContain("and 26 more clients");
    expect(drawBeliefs([])).toMatch(/^<svg/);
  });
});
