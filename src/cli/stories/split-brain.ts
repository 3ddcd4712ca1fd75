import type { Stage, Story } from "./stage.js";

export const splitBrain: Story = {
  name: "split-brain",
  title: "Split brain after a failover",
  tells:
    "Payments are locked on a Redis server with a replica. The server replies before the replica has the lock, and fails. The replica is promoted, knows nothing of the lock, and grants it again: the customer is charged twice.",
  failure: "A primary with a replica",
  fix: "A quorum of three servers",
  lesson:
    "One server with asynchronous replicas is for efficiency locks. A majority that knows the lock survives the loss of one.",
  link: "stores/quorum.md",
  needs: "redis",

  async direct(stage) {
    const data = await stage.data("CREATE TABLE charges (payment TEXT)");
    const fail = stage.fixed ? await startQuorum(stage) : await startPrimary(stage);
    const a = stage.cast("A");
    await a.says();
    await fail();
    const b = stage.cast("B", 1);
    await b.says();
    await a.cue().says();
    b.cue();
    if (!stage.fixed) await b.says();
    await b.ended();
    const charges = data.value("SELECT count(*) FROM charges");
    stage.ends(charges === 1, `charges of payment 9: ${charges}`);
  },

  async act(actor) {
    const data = await actor.open();
    const locks = await actor.connect();
    const lease = await locks.tryAcquire("payment:9");
    if (lease === null) return actor.sayAndWait("learns that A has it");
    await actor.sayAndWait("holds payment:9");
    data.run("INSERT INTO charges VALUES ('9')");
    actor.say("charges the customer");
  },
};

/** Returns the fault. From then on, actors use the new primary. */
async function startPrimary(stage: Stage): Promise<() => Promise<void>> {
  const lab = await stage.lab();
  const primary = await lab.redis();
  const replica = await lab.redis({ replicaOf: primary });
  await replica.synced();
  // Nobody listens there: what the primary writes from now on does not arrive.
  await replica.cli("REPLICAOF", "127.0.0.1", "1");
  stage.url = primary.url;
  return async () => {
    await primary.kill();
    await replica.promote();
    stage.url = replica.url;
    stage.note("the primary fails before the replica has the lock; the replica is promoted");
  };
}

async function startQuorum(stage: Stage): Promise<() => Promise<void>> {
  const servers = await (await stage.lab()).redisNodes(3);
  stage.url = `redlock://${servers.map(({ address, port }) => `${address}:${port}`).join(",")}`;
  return async () => {
    await servers[0]!.kill();
    stage.note("one of the three servers fails");
  };
}
