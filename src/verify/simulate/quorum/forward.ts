import type { QuorumNode } from "../../../stores/quorum/node.js";

/** A node that forwards to this one, but for some methods. */
export function forwardTo(node: QuorumNode, others: Partial<QuorumNode>): QuorumNode {
  return {
    where: node.where,
    join: () => node.join(),
    settle: (marker) => node.settle(marker),
    claim: (claim) => node.claim(claim),
    raise: (name, id, number) => node.raise(name, id, number),
    renew: (renewals) => node.renew(renewals),
    release: (release) => node.release(release),
    pass: (name) => node.pass(name),
    revoke: (revocation) => node.revoke(revocation),
    inspect: (names) => node.inspect(names),
    names: (prefix) => node.names(prefix),
    listen: (events) => node.listen(events),
    stopListening: () => node.stopListening(),
    close: () => node.close(),
    ...others,
  };
}
