import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { connect, createLocks } from "../../../src/index.js";
import { etcdStore, openEtcdClient } from "../../../src/stores/etcd/index.js";
import type { EndpointStatus } from "../../../src/stores/etcd/rpc/client.js";
import type { ClusterMember } from "../../../src/stores/etcd/rpc/messages.js";
import { flawsOf } from "../../../src/stores/etcd/versions.js";
import type { EtcdServer } from "../../../src/verify/lab/etcd.js";
import { rejection } from "../../core/helpers.js";
import { endpointOf, keysOf, OneEtcd } from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { freshFolder } from "../../support/sqlite.js";
import { until } from "../../support/worker.js";

type Answered = Extract<EndpointStatus, { error?: undefined }>;

const member = (id: bigint, isLearner = false): ClusterMember => ({
  id,
  name: `m${id}`,
  clientUrls: [],
  isLearner,
});

const versionHere = (): string =>
  /etcd Version: (\S+)/.exec(execFileSync("etcd", ["--version"], { encoding: "utf8" }))![1]!;

describeWith(["etcd"], "the cluster behind an etcd store", () => {
  const etcd = OneEtcd.forAll();

  describe("the number of members", () => {
    test("is that of the cluster, not that of the URL", async () => {
      const three = await etcd.lab.etcd({ nodes: 3 });
      const { flaws } = flawsOf(versionHere(), 3);
      for (const server of three.servers) {
        const locks = await connect(server.url);
        onTestFinished(() => locks.close());
        expect(locks.traits.grantsTwiceAfter).toEqual(flaws);
      }
      const client = await openEtcdClient({ endpoints: [endpointOf(three.servers[0]!)] });
      onTestFinished(() => client.close());
      const own = createLocks(etcdStore(client));
      onTestFinished(() => own.close());
      // Not known yet, which counts as a fault.
      expect(own.traits.grantsTwiceAfter).toHaveLength(1);
      await (await own.acquire("name")).release();
      await until("it is known", () => String(own.traits.grantsTwiceAfter) === String(flaws));
    });

    test("is taken for one and for several when it can't be read", async () => {
      expect(flawsOf("3.4.20", null).flaws).toHaveLength(3);
      expect(flawsOf("3.5.2", null).flaws).toHaveLength(3);
      expect(flawsOf("3.5.13", null).flaws).toHaveLength(0);
    });

    test("is read again when another member or leader replies", async (context) => {
      const { locks, store, wire } = await etcd.fresh(context);
      const members = [member(1n), member(2n, true)];
      wire.on.memberList = async () => members;
      const [one, three] = [1, 3].map((voters) => flawsOf("3.4.23", voters).flaws);
      wire.on.status = async (send) => {
        const [status] = await send();
        return [{ ...(status as Answered), version: "3.4.23" }];
      };
      await locks.acquire("name");
      await until(
        "the members were read",
        () => String(store.traits.grantsTwiceAfter) === String(one),
      );
      members.push(member(3n), member(4n));
      const term = 1_000n;
      wire.on.leaseKeepAlive = async (send) => ({ ...(await send()), term });
      wire.on.range = async (send) => ({ ...(await send()), term });
      await until(
        "the members were read",
        () => String(store.traits.grantsTwiceAfter) === String(three),
      );
      wire.on.memberList = () => Promise.reject(new Error("permission denied"));
      wire.on.leaseKeepAlive = async (send) => ({ ...(await send()), term: term + 1n });
      wire.on.range = async (send) => ({ ...(await send()), term: term + 1n });
      const either = flawsOf("3.4.23", null).flaws;
      await until(
        "the members were read",
        () => String(store.traits.grantsTwiceAfter) === String(either),
      );
    });
  });

  describe("data that went back", () => {
    const TTL = { ttl: 3_000 };

    /** A holder, and its fate when the server comes back by `again` with older data. */
    async function expectNoticed(server: EtcdServer, again: () => Promise<void>): Promise<void> {
      const locks = await connect(server.url, TTL);
      onTestFinished(() => locks.close());
      for (let i = 0; i < 5; i++) await (await locks.acquire("other")).release();
      const lease = await locks.acquire("name");
      await again();
      await until("it is lost", () => lease.signal.aborted);
      const refused = await rejection(locks.acquire("name"));
      expect(refused).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      expect(refused.message).toContain("raise tokenOffset by at least");
      expect(await keysOf(server, "holdfast/n/")).toEqual([]);
      // A process that starts now knows nothing of the earlier data.
      const [fresh, offset] = [
        await connect(server.url, TTL),
        await connect(server.url, { ...TTL, tokenOffset: lease.token }),
      ];
      onTestFinished(() => fresh.close());
      onTestFinished(() => offset.close());
      expect((await fresh.acquire("fresh")).token).toBeLessThan(lease.token);
      expect((await offset.acquire("offset")).token).toBeGreaterThan(lease.token);
    }

    test("by a restored snapshot: leases are lost, and lower tokens are refused", async () => {
      const server = (await etcd.lab.etcd()).servers[0]!;
      const file = join(freshFolder(), "snapshot.db");
      await server.ctl("snapshot", "save", file);
      await expectNoticed(server, () => server.restore(file));
    });

    test("by a wiped disk: leases are lost, and lower tokens are refused", async () => {
      const server = (await etcd.lab.etcd()).servers[0]!;
      await expectNoticed(server, async () => {
        await server.wipe();
        await server.start();
      });
    });

    test("a session that was restored with the snapshot does not prove later claims", async () => {
      const server = (await etcd.lab.etcd()).servers[0]!;
      const locks = await connect(server.url, { ttl: 20_000 });
      onTestFinished(() => locks.close());
      await (await locks.acquire("name")).release();
      const file = join(freshFolder(), "snapshot.db");
      await server.ctl("snapshot", "save", file);
      const lease = await locks.acquire("name");
      await server.restore(file);
      expect(await keysOf(server, "holdfast/s/")).toHaveLength(1);
      expect(await keysOf(server, "holdfast/n/")).toEqual([]);
      await until("it is lost", async () => {
        await lease.renew().catch(() => {});
        return lease.state === "lost";
      });
    });

    test("a restart keeps revisions, and so tokens rise", async () => {
      const server = (await etcd.lab.etcd()).servers[0]!;
      const locks = await connect(server.url, { ttl: 20_000 });
      onTestFinished(() => locks.close());
      const before = await locks.acquire("before");
      await server.restart();
      expect((await locks.acquire("after")).token).toBeGreaterThan(before.token);
      expect(before.state).toBe("held");
    });
  });
});
