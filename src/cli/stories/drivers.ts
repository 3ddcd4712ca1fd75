import type { Data } from "./actor.js";
import type { Player, Story } from "./stage.js";

export const drivers: Story = {
  name: "drivers",
  title: "Two rides for one driver",
  tells:
    "Several instances of a matching service look for a free driver, for different rides, many times a second. Several of them find the same driver free, and all of them assign it.",
  failure: "Look, then assign",
  fix: "A lock for the milliseconds of an assignment: lock, look again, assign, release",
  lesson:
    "This is an efficiency lock: short, at a high rate, on one server. A driver who is taken is not worth waiting for: tryAcquire. Look again under the lock: its last holder may have assigned the driver. A unique key of the table stands behind it, because a lock alone is not safe against a pause.",
  link: "patterns.md#uber",

  async direct(stage) {
    const driver = stage.fixed ? "driver INTEGER UNIQUE" : "driver INTEGER";
    const data = await stage.data(`CREATE TABLE rides (${driver}, ride TEXT)`);
    const [a, b, c] = ["A", "B", "C"].map((name, column) => stage.cast(name, column, 3)) as [
      Player,
      Player,
      Player,
    ];
    for (const one of [a, b, c]) await one.says();
    if (stage.fixed) {
      await a.cue().says();
      await b.cue().says(2);
      await a.cue().says();
      await c.cue().says(3);
      for (const one of [b, c]) await one.cue().says();
    } else for (const one of [a, b, c]) await one.cue().says();
    const most = data.value(
      "SELECT max(rides) FROM (SELECT count(*) AS rides FROM rides GROUP BY driver)",
    );
    stage.ends(most === 1, `rides of the busiest driver: ${most}`);
  },

  async act(actor) {
    const data = await actor.open();
    const locks = await actor.connect();
    const free = [7, 8, 9].filter((driver) => !hasRide(data, driver));
    await actor.sayAndWait(`finds ${free.join(", ")} free`);
    const assign = (driver: number): unknown =>
      data.run("INSERT INTO rides VALUES (?, ?)", driver, actor.name);
    if (!actor.fixed) {
      assign(free[0]!);
      return actor.say(`assigns ${free[0]}`);
    }
    for (const driver of free) {
      const lease = await locks.tryAcquire(`driver:${driver}`);
      if (lease === null) {
        actor.say(`${driver} is taken`);
        continue;
      }
      const isFree = !hasRide(data, driver);
      if (isFree) {
        await actor.sayAndWait(`locks ${driver}, still free`);
        assign(driver);
      }
      await lease.release();
      actor.say(isFree ? `assigns ${driver}` : `${driver} has a ride by now`);
      if (isFree) return;
    }
  },
};

const hasRide = (data: Data, driver: number): boolean =>
  data.value("SELECT ride FROM rides WHERE driver = ?", driver) !== null;
