import { spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { Lab } from "../../../src/verify/lab/lab.js";
import { type Host, Network } from "../../../src/verify/lab/network.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { Client } from "./client.js";

describeWith(["network", "network namespaces", "nft"], "a simulated network of hosts", () => {
  let lab: Lab;
  let network: Network;
  let a: Host;
  let b: Host;
  beforeAll(async () => {
    lab = await Lab.open();
    network = await Network.open(lab, { hosts: 3 });
    [a, b] = network.hosts as [Host, Host];
  });
  afterAll(() => lab?.close());

  test("drops packets in one direction or the other; healed, everything arrives", async () => {
    const [atA, atB] = await Promise.all([echo(a), echo(b)]);
    await atA.say("before");
    await atB.say("before");

    const deaf = network.blocks([network.outside], [a]);
    await deaf.inject();
    await atA.send("to deaf");
    await atB.say("to another");
    await deaf.heal();

    const mute = network.blocks([a], [network.outside]);
    await mute.inject();
    await atA.send("to mute");
    await until("it has arrived there", () => atA.received.includes("to mute"));
    await mute.heal();

    // Datagrams of one direction stay in order: after this one nothing older arrives.
    await atA.say("after");
    expect(atA.received).toEqual(["before", "to mute", "after"]);
    expect(atA.echoed).toEqual(["before", "after"]);
    expect(atB.echoed).toEqual(["before", "to another"]);
  });

  test("parts hosts from each other, and this machine reaches both", async () => {
    const [atA, atB] = await Promise.all([echo(a), echo(b)]);
    const [fromA, fromB] = await Promise.all([echo(a, b), echo(b, a)]);
    await Promise.all([fromA.say("before"), fromB.say("before")]);
    const partition = network.partition([a], [b, network.hosts[2]!]);
    await partition.inject();
    await Promise.all([fromA.send("lost"), fromB.send("lost")]);
    await Promise.all([atA.say("from outside"), atB.say("from outside")]);
    await partition.heal();
    await Promise.all([fromA.say("after"), fromB.say("after")]);
    expect(fromA.received).toEqual(["before", "after"]);
    expect(fromB.received).toEqual(["before", "after"]);
  });

  test("loses packets by percent, of both directions or of one", async () => {
    const at = await echo(a);
    const loss = network.loss(50, [network.outside], [a]);
    await loss.inject();
    for (let i = 0; i < 200; i++) await at.send(`lossy ${i}`);
    await loss.heal();
    await at.say("end");
    const arrived = at.received.length - 1;
    expect(arrived).toBeGreaterThan(50);
    expect(arrived).toBeLessThan(150);
    // Every datagram that arrived got a reply, and no reply was lost.
    expect(at.echoed.length).toBe(arrived + 1);

    const all = network.loss(100);
    await all.inject();
    await at.send("never");
    await all.heal();
    await at.say("again");
    expect(at.received).not.toContain("never");
  });

  test("shares no name and no address with another network", async () => {
    const others = await Promise.all([1, 2].map(() => Network.open(lab, { hosts: 1 })));
    const all = [network, ...others].map(({ outside }) => outside.address);
    expect(new Set(all).size).toBe(3);
    for (const other of others) {
      const at = await echo(other.hosts[0]!);
      await at.say("hello");
      at.kill();
      await other.close();
    }
    await (await echo(a)).say("still here");
  });

  describeWith(["redis"], "with Redis", () => {
    test("loses replies of Redis: the effect is there at once, the reply comes after healing", async () => {
      const redis = await lab.redis({ site: a });
      const client = await Client.open(redis);
      await client.request("set", "lost", "1");
      const lose = network.loseReplies(redis);
      await lose.inject();
      client.send("incr", "lost");
      await until("the effect", async () => (await redis.cli("get", "lost")) === "2");
      // The request took effect before this was known outside, because its way is shorter.
      expect(client.received).toBe(0);
      await lose.heal();
      expect(await client.reply()).toBe(":2");
    });
  });

  describeWith(["etcd"], "with etcd", () => {
    test("cuts off etcd's leader: the other side elects another; healed, there is one leader and one history", async () => {
      const etcd = await lab.etcd({ nodes: 3, sites: network.hosts });
      const old = await leaderOf(etcd);
      const alone = network.hosts.filter(({ address }) => address === old.address);
      const rest = network.hosts.filter(({ address }) => address !== old.address);
      const cut = network.partition(alone, rest);
      await until("a write", () => succeeds(old.ctl("put", "key", "before")));

      await cut.inject();
      const next = await leaderOf(etcd, old);
      await until("a write of the majority", () => succeeds(next.ctl("put", "key", "during")));
      await expect(old.ctl("put", "key", "minority")).rejects.toThrow();

      await cut.heal();
      await until("one leads, and all answer", async () => {
        const terms = await Promise.all(etcd.servers.map((one) => one.leads().catch(() => 0n)));
        return terms.filter((term) => term !== null).length === 1 && !terms.includes(0n);
      });
      await until("the old one knows what was written", async () =>
        (await old.ctl("get", "key", "--print-value-only").catch(() => "")).includes("during"),
      );
    });
  });
});

/** Elections are fast here, and on a busy machine there may be one more than intended. */
async function leaderOf<S>(cluster: { leader(): Promise<S> }, other?: S): Promise<S> {
  let leader: S | undefined;
  await until("one leads", async () => {
    leader = await cluster.leader().catch(() => undefined);
    return leader !== undefined && leader !== other;
  });
  return leader!;
}

const succeeds = (promise: Promise<unknown>): Promise<boolean> =>
  promise.then(
    () => true,
    () => false,
  );

/** A process on a host that sends datagrams back, and sends some on request, from outside or to another host. */
async function echo(host: Host, from?: Host) {
  const received: string[] = [];
  const echoed: string[] = [];
  const server = `const socket = require("node:dgram").createSocket("udp4");
    socket.on("message", (text, { port, address }) => {
      console.log(String(text));
      socket.send(text, port, address);
    });
    socket.bind(0, "${(from ?? host).address}", () => console.log(socket.address().port));`;
  const child = run(from ?? host, server);
  const lines = createInterface({ input: child.stdout! });
  const [port] = (await once(lines, "line")) as [string];
  lines.on("line", (line) => received.push(line));

  let send: (text: string) => Promise<unknown>;
  if (from === undefined) {
    const socket = createSocket("udp4");
    onTestFinished(() => void socket.close());
    socket.on("message", (text) => echoed.push(String(text)));
    send = (text) => new Promise((sent) => socket.send(text, Number(port), host.address, sent));
  } else {
    const client = run(
      host,
      `const socket = require("node:dgram").createSocket("udp4");
      socket.on("message", (text) => console.log(String(text)));
      require("node:readline").createInterface({ input: process.stdin })
        .on("line", (line) => socket.send(line, ${port}, "${from.address}", () => console.log(">")));`,
    );
    const answers = createInterface({ input: client.stdout! });
    let sends = 0;
    answers.on("line", (line) => void (line === ">" ? sends++ : echoed.push(line)));
    send = (text) => {
      const before = sends;
      client.stdin!.write(`${text}\n`);
      return until(`${text} is sent`, () => sends > before);
    };
  }
  return {
    received,
    echoed,
    /** Resolves when the datagram has been sent. */
    send,
    kill: () => child.kill("SIGKILL"),
    async say(text: string): Promise<void> {
      await send(text);
      await until(`the echo of ${text}`, () => echoed.includes(text));
    },
  };
}

function run(host: Host, code: string) {
  const [program, ...args] = host.command([process.execPath, "-e", code]);
  const child = spawn(program!, args, { stdio: ["pipe", "pipe", "inherit"] });
  onTestFinished(() => void child.kill("SIGKILL"));
  return child;
}
