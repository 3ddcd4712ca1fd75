import { type Fault, fault } from "../fault.js";
import type { Lab } from "./lab.js";
import { findProgram } from "./requirements.js";
import { runTool } from "./run.js";
import type { Site } from "./server.js";

/** Reserved for tests of network devices (RFC 2544), and the private ranges that are least in use. */
const RANGES = ["198.18", "198.19"];
const MOST_HOSTS = 200;
let opened = 0;

/** A member of the network: a host, or the machine itself. */
export interface Member {
  readonly name: string;
  readonly address: string;
}

/** A host with a network namespace of its own, in which servers and clients can be started. */
export interface Host extends Member, Site {}

/**
 * Hosts in network namespaces, and a switch between them in one more namespace, which can drop
 * packets. The machine's own namespace gets one interface, by which the machine is a member, and no
 * other change. After healing, a connection sends its lost packets again, after a pause that
 * doubled with each attempt.
 */
export class Network implements AsyncDisposable {
  /** The hosts, in order. */
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

  /** Makes a network of `hosts` hosts. Rejects where namespaces are not permitted. */
  static async open(lab: Lab, { hosts }: { readonly hosts: number }): Promise<Network> {
    if (!(hosts >= 1 && hosts <= MOST_HOSTS)) throw new RangeError(`hosts: 1 to ${MOST_HOSTS}`);
    const name = `hf-${lab.folder.slice(-6)}-${++opened}`;
    const ip = findProgram("ip");
    // The link is deleted explicitly: it would go with the switch, but some time later.
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

  /** Drops all packets between the two sides. */
  partition(side: readonly Member[], other: readonly Member[]): Fault {
    return this.#fault(`${names(side)} | ${names(other)}`, [
      `${between(side, other)} drop`,
      `${between(other, side)} drop`,
    ]);
  }

  /** Drops packets in one direction: from these members to those. */
  blocks(from: readonly Member[], to: readonly Member[]): Fault {
    return this.#fault(`${names(from)} unheard by ${names(to)}`, [`${between(from, to)} drop`]);
  }

  /** Drops a share of all packets, or of those from some members to others. */
  loss(percent: number, from = this.#all(), to = this.#all()): Fault {
    if (!(percent >= 1 && percent <= 100)) throw new RangeError("percent: 1 to 100");
    return this.#fault(`${percent} % of packets lost`, [
      `${between(from, to)} numgen random mod 1000 <= ${Math.round(percent * 10) - 1} drop`,
    ]);
  }

  /**
   * Connections to the server stay up and requests take effect, but no reply is complete: its last
   * packet is dropped.
   */
  loseReplies(server: Member & { readonly port: number }): Fault {
    return this.#fault(`replies of ${server.name} lost`, [
      `ip saddr ${server.address} tcp sport ${server.port} tcp flags & psh == psh drop`,
    ]);
  }

  /** Removes the network. The processes on its hosts have to end first. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.#turn;
    await this.#undo();
  }

  /** The same as `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #all(): readonly Member[] {
    return [this.outside, ...this.hosts];
  }

  async #build(): Promise<void> {
    const ports = this.hosts.map((_, i) => `port${i + 1}`);
    const spaces = this.hosts.map((_, i) => `${this.#name}-${i + 1}`);
    // Interfaces are made in their namespaces, so that no other run can have one of the same name.
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

  /** Replaces all rules in one transaction of the kernel. */
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
 * Makes the switch, and this machine's interface to it. The route claims the subnet: if two runs
 * add the same route, the kernel refuses one.
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

/** Whether a route concerns the subnet. A route for a large part of all addresses does not count. */
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

/** Not by `ip netns exec`, which gives a process mounts of its own, in which a disk would stay mounted. */
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
