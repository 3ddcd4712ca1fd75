import { fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { within } from "./clock.mjs";

const CHILD = fileURLToPath(new URL("./child.mjs", import.meta.url));
const PATIENCE_MS = 120_000;

/**
 * A contestant opened in a process of its own. `call(method, args)` runs a function of the kind's
 * `inChild` there: `{ id, method, args }` goes, `{ id, value }` or `{ id, error }` comes back.
 */
export async function startProcess({ benchmark, kind, contestant, place, terms, flags = [] }) {
  const child = fork(CHILD, [benchmark, kind, contestant, JSON.stringify([place, terms])], {
    execArgv: flags,
    serialization: "advanced",
  });
  const calls = new Map();
  let ids = 0;
  child.on("message", ({ id, value, error }) => {
    const { resolve, reject } = calls.get(id);
    calls.delete(id);
    if (error === undefined) resolve(value);
    else reject(new Error(error));
  });
  const ended = once(child, "exit").then(([code, signal]) => {
    for (const { reject } of calls.values()) {
      reject(new Error(`its process ended with ${code ?? signal}`));
    }
    calls.clear();
  });
  const call = (method, args = {}) => {
    const answer = new Promise((resolve, reject) => {
      if (!child.connected) throw new Error("its process has ended");
      const id = ids++;
      calls.set(id, { resolve, reject });
      child.send({ id, method, args });
    });
    return within(PATIENCE_MS, answer, method);
  };
  const kill = async () => {
    child.kill("SIGKILL");
    await ended;
  };
  try {
    await call("open");
  } catch (error) {
    await kill();
    throw error;
  }
  return { call, kill };
}

/** All of them, or none: one that can't start does not leave the others behind. */
export async function allStarted(starts) {
  const settled = await Promise.allSettled(starts);
  const failed = settled.find(({ status }) => status === "rejected");
  const processes = settled.flatMap(({ value }) => value ?? []);
  if (failed === undefined) return processes;
  await Promise.all(processes.map((one) => one.kill()));
  throw failed.reason;
}
