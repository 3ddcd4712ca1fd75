import { type Fault, fault } from "../fault.js";
import type { Member, ServerCluster } from "../lab/cluster.js";
import type { Lab } from "../lab/lab.js";
import { type Host, Network } from "../lab/network.js";
import { lackingRight } from "../lab/rights.js";
import { until } from "../lab/until.js";
import type { FaultKind } from "../runner/kinds.js";
import type { LeftOut } from "../runner/target.js";

/* The parts that targets with a leader and a network share. */

export const LEADER_MS = 20_000;

export async function leaderOf<S extends Member>(cluster: ServerCluster<S>): Promise<S> {
  let leader: S | undefined;
  await until("a member leads", LEADER_MS, async () => {
    leader = await cluster.leader().catch(() => undefined);
    return leader !== undefined;
  });
  return leader!;
}

/** A fault of the member that leads when the fault is injected. */
export function onLeader<S extends Member>(
  cluster: ServerCluster<S>,
  name: string,
  make: (leader: S) => Fault,
): Fault {
  return onMember(name, async () => make(await leaderOf(cluster)));
}

/** A fault that is made when it is injected, of the member that has a role then. */
export function onMember(name: string, make: () => Promise<Fault>): Fault {
  let one: Fault | null = null;
  return fault(
    name,
    async () => {
      one = await make();
      await one.inject();
    },
    () => one?.heal(),
  );
}

/** Faults that need a host for each member. */
const NETWORK_FAULTS = {
  isolated: "leader isolated from the members",
  unheard: "leader unheard by the members",
  lossy: "packets between members lost",
} as const;

/** A host for each member, where network namespaces are available; otherwise the faults `names` are left out, too. */
export async function openHosts(
  lab: Lab,
  hosts: number,
  names: readonly string[] = [],
): Promise<{ network: Network | null; leftOut: readonly LeftOut[] }> {
  const because = lackingRight("network namespaces") ?? lackingRight("nft");
  if (because === null) return { network: await Network.open(lab, { hosts }), leftOut: [] };
  const leftOut = [...Object.values(NETWORK_FAULTS), ...names];
  return { network: null, leftOut: leftOut.map((name) => ({ name, because })) };
}

export function networkKinds<S extends Member>(
  cluster: ServerCluster<S>,
  network: Network,
  lasts: FaultKind["lasts"],
): readonly FaultKind[] {
  const isolated = (name: string, cut: (host: Host) => Fault): FaultKind => ({
    name,
    hits: "cluster",
    lasts,
    make: () => onLeader(cluster, name, (leader) => cut(hostOf(network, leader))),
  });
  return [
    isolated(NETWORK_FAULTS.isolated, (host) => cutOff(network, host)),
    isolated(NETWORK_FAULTS.unheard, (host) => network.blocks([host], others(network, host))),
    {
      name: NETWORK_FAULTS.lossy,
      hits: "cluster",
      lasts,
      make: (_member, random) =>
        network.loss(Math.round(5 + random.unit() * 30), network.hosts, network.hosts),
    },
  ];
}

/** Cuts a host off from the others, but not from clients. */
export const cutOff = (network: Network, host: Host): Fault =>
  network.partition([host], others(network, host));

export const hostOf = (network: Network, server: { readonly address: string }): Host =>
  network.hosts.find(({ address }) => address === server.address)!;

const others = (network: Network, host: Host): readonly Host[] =>
  network.hosts.filter((one) => one !== host);
