import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import type { Server } from "../../../src/verify/lab/server.js";

interface Subject {
  server(): Server;
  write(value: string): Promise<unknown>;
  /** Null when no value is there. */
  read(): Promise<string | null>;
}

const QUIET_MS = 150;

/** The promises of start, stop, kill, pause, resume and wipe, for a server that keeps its data over a kill. */
export function verbs({ server, write, read }: Subject): void {
  test("a stopped server is gone; started again it has its data, on the same port", async () => {
    await write("before stop");
    const { pid, port } = server();
    await server().stop();
    expect(server()).toMatchObject({ state: "down", pid: null, port });
    expect(isAlive(pid!)).toBe(false);
    await expect(reach(server())).rejects.toThrow("ECONNREFUSED");
    await server().start();
    expect(server().state).toBe("running");
    expect(await read()).toBe("before stop");
  });

  test("a killed server is gone at once; restarted it has its data and another process", async () => {
    await write("before kill");
    const first = server().pid;
    await server().kill();
    expect(isAlive(first!)).toBe(false);
    await expect(reach(server())).rejects.toThrow("ECONNREFUSED");
    await server().restart();
    expect(server().pid).not.toBe(first);
    expect(await read()).toBe("before kill");
  });

  test("a paused server accepts connections and does not reply; resumed it does", async () => {
    await write("before pause");
    await server().pause();
    expect(server().state).toBe("paused");
    await expect(server().start()).rejects.toThrow("is paused");
    await reach(server());
    let answered = false;
    const reading = read().finally(() => {
      answered = true;
    });
    await sleep(QUIET_MS);
    expect(answered).toBe(false);
    await server().resume();
    expect(await reading).toBe("before pause");
    await expect(server().resume()).rejects.toThrow("is running, not paused");
  });

  test("a server that is killed while it is paused can be started again", async () => {
    await server().pause();
    await server().kill();
    expect(server().state).toBe("down");
    await server().start();
    expect(await read()).toBe("before pause");
  });

  test("a wiped server has no data", async () => {
    await write("before wipe");
    await server().wipe();
    expect(await read()).toBe(null);
  });

  test("a server counts the commands of clients, and not those of the lab", async () => {
    await write("one");
    await server().restart();
    const before = await server().commands();
    expect(before).toBe(0);
    expect(await server().commands()).toBe(before);
    await read();
    const after = await server().commands();
    expect(after).toBeGreaterThan(before);
    expect(after).toBeLessThanOrEqual(before + 2);
  });

  test("calls that change nothing resolve", async () => {
    const { pid } = server();
    await server().start();
    expect(server().pid).toBe(pid);
    await server().kill();
    await server().kill();
    await server().stop();
    await Promise.all([server().start(), server().start()]);
    expect(server().state).toBe("running");
  });
}

/** A zombie counts as dead: only its exit code has not been read yet. */
export function isAlive(pid: number): boolean {
  try {
    return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}

function reach({ address, port }: Server): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, address, () => {
      socket.destroy();
      resolve();
    });
    socket.once("error", reject);
  });
}
