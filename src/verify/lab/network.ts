import { type Fault, fault } from "../faults/fault.js";
import type { Lab } from "./lab.js";
import { findProgram } from "./requirements.js";
import { runTool } from "./run.js";
import type { Site } from "./server.js";

/** Reserved for tests of network devices (RFC 2544): of all private ranges the one least in use. */
const RANGES = ["198.18", "198.19"];
const MOST_HOSTS = 200;
let opened = 0;

/** A member of the network: a host, or the machine itself. */
export interface Member {
  readonly name: string;
  readonly address: string;
}

/** A network namespace of its own; servers and clients are started in it as at any site. */
export interface Host extends Member, Site {}

/**
 * Hosts in network namespaces, and a switch between them, in one more, in which packets can be
 * dropped. Nothing is changed in the machine's own namespace but one interface, by which it is a
 * member too. Dropped is what passes the switch: what a connection lost it sends again when healed,
 * after a pause that has doubled with each try.
 */
export class Network implements AsyncDisposable {
  readonly hosts: readonly Host[];
  /** The machine itself, where the lab's owner runs. */
  readonly outside: Member;
  readonly #name: string;
  readonly #switch: string;
  readonly #drops = new Map<object, readonly string[]>();
  readonly #undo: () => Promise<void>;
  #turn: Promise<unknown> = Promise.resolve();
  #closed = false;

  private constructor(name: string, subnet: string, hosts: number, undo: () => Promise<void>) {
    this.#name = name;
    this.#switch = `${name}-switch`;
    this.#undo = undo;
    this.outside = { name: "outside", address: `${subnet}.1` };
    this.hosts = Array.from({ length: hosts }, (_, i) => ({
      name: `host-${i + 1}`,
      address: `${subnet}.${i + 2}`,
      command: (argv) => inSpace(`${name}-${i + 1}`, argv),
      env: {},
    }));
  }

  static async open(lab: Lab, { hosts }: { readonly hosts: number }): Promise<Network> {
    if (!(hosts >= 1 && hosts <= MOST_HOSTS)) throw new RangeError(`hosts: 1 to ${MOST_HOSTS}`);
    const name = `hf-${lab.folder.slice(-6)}-${++opened}`;
    const ip = findProgram("ip");
    // The link by itself: it would go with the switch, but some time later.
    const undo = `${ip} link del ${name} 2> /dev/null
      for space in $(${ip} netns list | grep -o '^${name}-[^ ]*'); do ${ip} netns del $space; done`;
    const forget = lab.onEnd(undo);
    const end = async (): Promise<void> => {
      await runTool(["sh", "-c", undo]);
      forget();
    };
    try {
      const network = new Network(name, await plugIn(name), hosts, end);
      await network.#build();
      return network;
    } catch (error) {
      await end();
      throw error;
    }
  }

  /** Neither side hears the other. */
  partition(side: readonly Member[], other: readonly Member[]): Fault {
    return this.#fault(`${names(side)} | ${names(other)}`, [
      `${between(side, other)} drop`,
      `${between(other, side)} drop`,
    ]);
  }

  /** One way: what these send does not reach those. */
  blocks(from: readonly Member[], to: readonly Member[]): Fault {
    return this.#fault(`${names(from)} unheard by ${names(to)}`, [`${between(from, to)} drop`]);
  }

  /** Of all packets, or of those from some to others. */
  loss(percent: number, from = this.#all(), to = this.#all()): Fault {
    if (!(percent >= 1 && percent <= 100)) throw new RangeError("percent: 1 to 100");
    return this.#fault(`${percent} % of packets lost`, [
      `${between(from, to)} numgen random mod 1000 <= ${Math.round(percent * 10) - 1} drop`,
    ]);
  }

  /** Connections to the server stay up, requests take effect, and no reply is complete: what ends one is dropped. */
  loseReplies(server: Member & { readonly port: number }): Fault {
    return this.#fault(`replies of ${server.name} lost`, [
      `ip saddr ${server.address} tcp sport ${server.port} tcp flags & psh == psh drop`,
    ]);
  }

  /** The processes on its hosts have to end first. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.#turn;
    await this.#undo();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #all(): readonly Member[] {
    return [this.outside, ...this.hosts];
  }

  async #build(): Promise<void> {
    const ports = this.hosts.map((_, i) => `port${i + 1}`);
    const spaces = this.hosts.map((_, i) => `${this.#name}-${i + 1}`);
    // Made where they belong: no other run can have an interface of the same name.
    await runTool(
      ["ip", "-batch", "-"],
      spaces
        .flatMap((space, i) => [
          `netns add ${space}`,
          `link add ${ports[i]} netns ${this.#switch} type veth peer name eth0 netns ${space}`,
        ])
        .join("\n"),
    );
    await Promise.all([
      runTool(
        ["ip", "-n", this.#switch, "-batch", "-"],
        [
          "link add bridge type bridge",
          "link set bridge up",
          ...["outside", ...ports].flatMap((port) => [
            `link set ${port} master bridge`,
            `link set ${port} up`,
          ]),
        ].join("\n"),
      ),
      ...spaces.map((space, i) =>
        runTool(
          ["ip", "-n", space, "-batch", "-"],
          [
            "link set lo up",
            `addr add ${this.hosts[i]!.address}/24 dev eth0`,
            "link set eth0 up",
          ].join("\n"),
        ),
      ),
      this.#obey(),
    ]);
  }

  #fault(name: string, drops: readonly string[]): Fault {
    const key = {};
    return fault(
      name,
      () => {
        this.#drops.set(key, drops);
        return this.#obey();
      },
      () => {
        this.#drops.delete(key);
        return this.#obey();
      },
    );
  }

  /** All rules anew, in one transaction of the kernel. */
  async #obey(): Promise<void> {
    if (this.#closed) return;
    const rules = [...this.#drops.values()].flat();
    const script = [
      "table bridge holdfast {",
      "chain passing {",
      "type filter hook forward priority 0; policy accept;",
      ...rules,
      "}",
      "}",
    ];
    const done = this.#turn.then(() =>
      runTool(
        inSpace(this.#switch, [findProgram("nft"), "-f", "-"]),
        ["table bridge holdfast", "delete table bridge holdfast", ...script].join("\n"),
      ),
    );
    this.#turn = done.catch(() => {});
    await done;
  }
}

/**
 * The switch, and this machine's interface to it. The route is what claims the subnet: of two runs
 * that add the same one, the kernel refuses one.
 */
async function plugIn(name: string): Promise<string> {
  await runTool(
    ["ip", "-batch", "-"],
    [
      `netns add ${name}-switch`,
      `link add ${name} type veth peer name outside netns ${name}-switch`,
      `link set ${name} up`,
    ].join("\n"),
  );
  const routes = (await runTool(["ip", "-4", "route", "show", "table", "all"])).split("\n");
  const subnets = RANGES.flatMap((range) => Array.from({ length: 256 }, (_, i) => `${range}.${i}`));
  for (const subnet of shuffled(
    subnets.filter((one) => !routes.some((route) => meets(route, one))),
  )) {
    try {
      await runTool(["ip", "route", "add", `${subnet}.0/24`, "dev", name]);
    } catch (error) {
      if (/File exists/.test(String(error))) continue;
      throw error;
    }
    await runTool(["ip", "addr", "add", `${subnet}.1/24`, "dev", name, "noprefixroute"]);
    return subnet;
  }
  throw new Error(`no free subnet in ${RANGES.join(" and ")}`);
}

/** Whether a route is about the subnet. One that is about half of the world is no reason to keep away. */
function meets(route: string, subnet: string): boolean {
  const [, base, length = "32"] = /\b(\d+\.\d+\.\d+\.\d+)(?:\/(\d+))?/.exec(route) ?? [];
  if (base === undefined || route.startsWith("default") || Number(length) < 8) return false;
  const differs = toNumber(base) ^ toNumber(`${subnet}.0`);
  return differs >>> (32 - Math.min(24, Number(length))) === 0;
}

const toNumber = (address: string): number =>
  address.split(".").reduce((sum, byte) => sum * 256 + Number(byte), 0);

const shuffled = <T>(list: readonly T[]): T[] =>
  list
    .map((item) => ({ item, order: Math.random() }))
    .sort((a, b) => a.order - b.order)
    .map(({ item }) => item);

/** Not by `ip netns exec`: that gives a process mounts of its own, and a disk would stay mounted there. */
const inSpace = (space: string, argv: readonly string[]): [string, ...string[]] => [
  findProgram("nsenter"),
  `--net=/run/netns/${space}`,
  "--",
  ...argv,
];

const names = (members: readonly Member[]): string => members.map(({ name }) => name).join(", ");

function between(from: readonly Member[], to: readonly Member[]): string {
  const set = (members: readonly Member[]): string =>
    `{ ${members.map(({ address }) => address).join(", ")} }`;
  return `ip saddr ${set(from)} ip daddr ${set(to)}`;
}
