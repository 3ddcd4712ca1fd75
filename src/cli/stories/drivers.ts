import type { Story } from "./stage.js";

export const drivers: Story = {
  name: "drivers",
  title: "Two rides for one driver",
  tells:
    "Several instances of a matching service look for a free driver, for different rides, many times a second. Two of them find the same driver free, and both assign it.",
  failure: "Look, then assign",
  fix: "A lock for the milliseconds of an assignment",
  lesson:
    "This is an efficiency lock: short, at a high rate, on one server. A driver who is taken is not worth waiting for: tryAcquire. A check of the booking stands behind it.",
  link: "patterns.md#uber",

  async direct(stage) {
    const data = await stage.data("CREATE TABLE rides (driver INTEGER, ride TEXT)");
    const a = stage.cast("A");
    await a.says();
    const b = stage.cast("B", 1);
    await b.says();
    await a.cue().says();
    await b.cue().says();
    const most = data.value(
      "SELECT max(rides) FROM (SELECT count(*) AS rides FROM rides GROUP BY driver)",
    );
    stage.ends(most === 1, `rides of the busiest driver: ${most}`);
  },

  async act(actor) {
    const data = await actor.open();
    const locks = await actor.connect();
    let taken = "";
    for (const driver of [7, 8]) {
      if (data.value("SELECT ride FROM rides WHERE driver = ?", driver) !== null) continue;
      if (actor.fixed && (await locks.tryAcquire(`driver:${driver}`)) === null) {
        taken = `driver ${driver} is taken; `;
        continue;
      }
      await actor.sayAndWait(`${taken}finds driver ${driver} free`);
      data.run("INSERT INTO rides VALUES (?, ?)", driver, actor.name);
      return actor.say(`assigns driver ${driver}`);
    }
  },
};
