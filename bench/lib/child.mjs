// The other end of processes.mjs.
import { startCpu } from "./resources.mjs";

const [benchmark, kind, name, given] = process.argv.slice(2);
const { contestants } = await import(benchmark);
const { inChild } = await import(kind);
const contestant = contestants.find((one) => one.name === name);
const self = {};

const methods = {
  async open() {
    self.adapter = await contestant.open(...JSON.parse(given));
  },
  async warmUp({ name }) {
    await self.adapter.release(await self.adapter.acquire(name));
  },
  async startCpu() {
    self.cpu = startCpu();
  },
  async readCpu() {
    return self.cpu();
  },
  ...inChild,
};

process.on("message", ({ id, method, args }) => {
  methods[method](args, self).then(
    (value) => process.send({ id, value }),
    (error) => process.send({ id, error: String(error?.stack ?? error) }),
  );
});
process.on("disconnect", () => process.exit());
