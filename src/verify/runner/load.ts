const BEAT_MS = 10;
const TRIAL_MS = 300;

/** Measures how late the timers of this process are: on a busy machine everything is late. */
export class Load {
  readonly #timer: NodeJS.Timeout;
  #beatAtMs = performance.now();
  #worstMs = 0;

  constructor() {
    this.#timer = setInterval(() => this.#beat(), BEAT_MS).unref();
  }

  /** The delay of the latest timer since the last call. */
  takeWorstMs(): number {
    this.#beat();
    const worstMs = this.#worstMs;
    this.#worstMs = 0;
    return worstMs;
  }

  /** The factor by which the run should be slower than usual: 1 on a quiet machine, 1.5 or 2 on a busy one. */
  async pace(): Promise<number> {
    this.takeWorstMs();
    const cpu = process.cpuUsage();
    const fromMs = performance.now();
    // On a quiet machine, a busy loop gets nearly all the time of a core, and thousands of turns.
    let turns = 0;
    while (performance.now() - fromMs < TRIAL_MS) {
      await new Promise((resolve) => setImmediate(resolve));
      turns++;
    }
    const { user, system } = process.cpuUsage(cpu);
    const share = (user + system) / 1_000 / (performance.now() - fromMs);
    const late = this.takeWorstMs() > 100 || turns < 100;
    if (share > 0.8 && !late) return 1;
    return share > 0.5 && !late ? 1.5 : 2;
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #beat(): void {
    const nowMs = performance.now();
    this.#worstMs = Math.max(this.#worstMs, nowMs - this.#beatAtMs - BEAT_MS);
    this.#beatAtMs = nowMs;
  }
}
