import { describe, expect, test } from "vitest";
import type { Store } from "../../src/core/store.js";
import { etcdStore, openEtcdClient } from "../../src/stores/etcd/index.js";
import { type Case, conformance, runCase } from "../../src/testing/index.js";
import { endpointOf, OneEtcd } from "../support/etcd.js";
import { describeWith } from "../support/needs.js";
import { until } from "../support/worker.js";
import { NEEDS_VIRTUAL_TIME, realSubject } from "./subjects.js";

/** Twelve ttls long, so it begins: the others fit beside it. */
const LONGEST = "1,000 names at once";

describeWith(["etcd"], "etcd", () => {
  const etcd = OneEtcd.forAll();

  async function passes(one: Case, prefix = etcd.prefix()): Promise<void> {
    const open = async (): Promise<Store> => {
      const client = await openEtcdClient({ endpoints: [endpointOf(etcd.server)] });
      return etcdStore(client, { prefix, closeClient: true });
    };
    const outcome = await runCase(one, realSubject(open, 2_000));
    const skipped = NEEDS_VIRTUAL_TIME[one.name];
    expect(outcome).toEqual(skipped === undefined ? "passed" : { skipped });
  }

  describe.concurrent("one member: conformance", () => {
    const prefix = etcd.prefix();
    /** To take so many at once holds up everything else, and ttls are short. */
    let taken: Promise<void> | undefined;

    for (const one of conformance.filter(({ name }) => name === LONGEST)) {
      test(one.name, { timeout: 60_000 }, async () => {
        const areTaken = async () => (await etcd.everything(prefix)).length > 1_000;
        taken = until("they are taken", areTaken).catch(() => {});
        await passes(one, prefix);
      });
    }
    for (const one of conformance.filter(({ name }) => name !== LONGEST)) {
      test(one.name, { timeout: 60_000 }, async () => {
        await taken;
        await passes(one);
      });
    }
  });
});
