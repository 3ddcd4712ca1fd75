import { setImmediate as turn } from "node:timers/promises";
import { expect, test } from "vitest";
import { Agenda } from "../../../src/core/agenda.js";
import { Alarm } from "../../../src/stores/zookeeper/client/alarm.js";
import { VirtualClock } from "../../../src/testing/virtual-clock.js";

test("an alarm that is set again while input is read waits for its new time", async () => {
  const clock = new VirtualClock();
  const agenda = new Agenda(clock, () => {});
  const rung: number[] = [];
  const alarm = Alarm.afterInput(() => rung.push(clock.elapsedMs()));
  const startMs = clock.elapsedMs();
  const input = Alarm.afterInput(() => {});
  input.wake = () => agenda.set(alarm, startMs + 300);
  agenda.set(alarm, startMs + 100);
  agenda.set(input, startMs + 100);
  await clock.advance(100);
  await turn();
  expect(rung).toEqual([]);
  await clock.advance(200);
  await turn();
  expect(rung).toEqual([startMs + 300]);
});
