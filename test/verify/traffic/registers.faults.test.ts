import { expect, onTestFinished, test } from "vitest";
import { withFenceServer } from "../../../src/verify/targets/fence-server.js";
import { verifyInLab } from "../../../src/verify/targets/open.js";
import { openRegister } from "../../../src/verify/traffic/registers/open.js";
import type { ServerRegister } from "../../../src/verify/traffic/registers/register.js";
import { needs } from "../../support/needs.js";

const by = (token: bigint) => ({ token, floor: token });
const FENCES = ["redis", "postgres", "etcd", "zookeeper"] as const;

test.for(FENCES)(
  "the register behind a fence in %s",
  { timeout: 120_000 },
  async (fence, context) => {
    needs(context, fence);
    await withFenceServer(fence, async (place) => {
      const open = async (space: string): Promise<ServerRegister> => {
        const register = await openRegister({ ...place!, space });
        onTestFinished(() => void register.close());
        return register;
      };
      const [one, other, elsewhere] = [await open("a"), await open("a"), await open("b")];
      // A worker enters before it reads.
      expect(await one.enter("cell", by(5n))).toEqual({ accepted: true, step: 1 });
      expect(await one.write("cell", by(5n), 1)).toEqual({ accepted: true, step: 2 });
      expect(await other.enter("cell", by(6n))).toEqual({ accepted: true, step: 3 });
      // The refusal has a step too: the order of all accesses is known.
      expect(await one.write("cell", by(5n), 9)).toEqual({ accepted: false, step: 4 });
      expect(await one.read("cell")).toMatchObject({ value: 1, unfenced: 0 });
      const writes = Array.from({ length: 8 }, (_, i) =>
        (i % 2 === 0 ? one : other).write("cell", by(6n), i + 2),
      );
      const steps = (await Promise.all(writes)).map((answer) => answer?.step);
      expect(steps.toSorted((a, b) => a! - b!)).toEqual([5, 6, 7, 8, 9, 10, 11, 12]);
      expect(await one.writeUnfenced("cell", 3)).toBe(0);
      expect(await other.writeUnfenced("cell", 4)).toBe(3);
      expect(await other.read("cell")).toMatchObject({ value: expect.any(Number), unfenced: 4 });
      expect(await elsewhere.write("cell", by(1n), 7)).toEqual({ accepted: true, step: 1 });
    });
  },
);

test("a run of the verifier writes to the register of the fence that was named", {
  timeout: 120_000,
}, async (context) => {
  needs(context, "redis");
  await withFenceServer("redis", async (register) => {
    const { result } = await verifyInLab("sqlite", {
      seed: 1,
      runs: 1,
      workers: 3,
      runMs: 3_000,
      register,
    });
    expect(result.outcome).not.toBe("violated");
    expect(result.fence).toBe("redis");
    expect(result.fenced.writes).toBeGreaterThan(0);
    expect(result.fenced.lost).toBe(0);
  });
});
