#!/usr/bin/env node
// Brings the servers that the tests start. It installs only as root on Debian or Ubuntu; anywhere
// else it says what to paste. It never fails: tests whose servers are missing are skipped.
import { spawn, spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname } from "node:path";
import { hasApt, isRoot, KINDS, missing, packagesOf } from "../dist/verify/lab/requirements.js";

/** Asked by every package before it starts a service: 101 is no. */
const POLICY = "/usr/sbin/policy-rc.d";
const POLICY_TEXT =
  "#!/bin/sh\n# Of Holdfast's install-servers, while it runs; may be deleted.\nexit 101\n";
const NO_CLUSTER = "/etc/postgresql-common/createcluster.d/holdfast.conf";
const INIT = "/etc/init.d";

const APT = ["-o", "DPkg::Lock::Timeout=60", "-o", "Acquire::Retries=1"].concat(
  ["http", "https"].flatMap((scheme) => ["-o", `Acquire::${scheme}::Timeout=20`]),
);
const ENV = {
  ...process.env,
  DEBIAN_FRONTEND: "noninteractive",
  // On Ubuntu it would restart services that run already.
  NEEDRESTART_SUSPEND: "1",
};

const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"];

/** The apt-get that runs now. */
let running = null;

const lacking = missing(KINDS);
if (lacking === null) say("all are installed");
else {
  say(`needed are ${packagesOf(KINDS).join(" ")}`);
  say(`missing are ${lacking.packages.join(" ")}`);
  const problem = mayNotInstall() ?? (await install(lacking.packages));
  const left = missing(KINDS);
  if (left === null) say("installed, and no service was started");
  else
    say(
      `${problem ?? "some are still missing"}. Tests that need them are skipped. To run them too:\n  ${left.advice}`,
    );
}

function say(text) {
  console.log(`servers for the tests: ${text}`);
}

function mayNotInstall() {
  if (process.env.HOLDFAST_NO_INSTALL === "1")
    return "not installed, as HOLDFAST_NO_INSTALL=1 says";
  if (!hasApt()) return "can be installed only on Debian and Ubuntu";
  if (!isRoot()) return "can be installed only by root";
  // A policy of the machine's owner stays; ours may be left from a run that was killed.
  if (
    existsSync(POLICY) &&
    !isOurs() &&
    spawnSync(POLICY, ["redis-server", "start"]).status !== 101
  ) {
    return `not installed, because ${POLICY} lets packages start services`;
  }
  return null;
}

async function install(packages) {
  say("installing, for about half a minute");
  const services = new Set(list(INIT));
  let interrupted = null;
  const interrupt = (signal) => {
    interrupted = signal;
    running?.kill(signal);
  };
  for (const signal of SIGNALS) process.once(signal, interrupt);
  const undo = hold();
  try {
    // A source of the owner's that is broken need not matter.
    await apt("update");
    if (interrupted !== null) return null;
    const { code, output } = await apt(
      ...["install", "-y", "--no-install-recommends", "--no-upgrade", "--no-remove"],
      ...["-o", "Dpkg::Options::=--force-confold", ...packages],
    );
    for (const name of list(INIT)) {
      // Nor at the next boot.
      if (!services.has(name)) spawnSync("update-rc.d", [name, "disable"], { stdio: "ignore" });
    }
    return code === 0 ? null : `apt-get failed: ${output.trim().split("\n").slice(-5).join(" ")}`;
  } catch (error) {
    return `apt-get failed: ${error.message}`;
  } finally {
    // Not before apt-get has ended: what it still unpacks would be started.
    undo();
    for (const signal of SIGNALS) process.removeListener(signal, interrupt);
    if (interrupted !== null) process.kill(process.pid, interrupted);
  }
}

/** Keeps packages from starting services and PostgreSQL from making a database; gives the way back. */
function hold() {
  const undos = [];
  if (!existsSync(POLICY) || isOurs()) {
    writeFileSync(POLICY, POLICY_TEXT, { mode: 0o755 });
    undos.push(() => rmSync(POLICY, { force: true }));
  }
  mkdirSync(dirname(NO_CLUSTER), { recursive: true });
  writeFileSync(NO_CLUSTER, "create_main_cluster = false\n");
  undos.push(() => rmSync(NO_CLUSTER, { force: true }));
  undos.push(() => list(dirname(NO_CLUSTER)).length === 0 && rmdirSync(dirname(NO_CLUSTER)));
  return () => {
    for (const undo of undos.splice(0)) undo();
  };
}

function apt(...args) {
  return new Promise((resolve, reject) => {
    const child = spawn("apt-get", ["-qq", ...APT, ...args], {
      env: ENV,
      stdio: ["ignore", "pipe", "pipe"],
    });
    running = child;
    let output = "";
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text) => {
        output += text;
      });
    }
    child.once("error", reject);
    child.once("close", (code) => resolve({ code, output }));
  });
}

function isOurs() {
  return readFileSync(POLICY, "utf8") === POLICY_TEXT;
}

function list(folder) {
  return existsSync(folder) ? readdirSync(folder) : [];
}
