import { uptime } from "node:os";

/** A pending call of `Clock.after`. */
export interface Timer {
  cancel(): void;
  /** Whether the pending timer keeps the process alive. */
  keepAlive(yes: boolean): void;
}

/** The source of the core's time, injected so that tests run in virtual time. */
export interface Clock {
  /** Elapsed time: never goes back, and includes the time in which the machine was suspended. All deadlines use it. */
  elapsedMs(): number;
  /** The wall clock: shown to people, and compared with elapsed time to suspect a freeze. No deadline depends on it. */
  wallMs(): number;
  /**
   * The time that only the wall clock has counted: the machine may have been frozen for that long.
   * Never falls; as of the last `elapsedMs()`.
   */
  unexplainedMs(): number;
  /** The timer keeps the process alive only after `keepAlive(true)`. */
  after(ms: number, run: () => void): Timer;
}

/** Where the system's clock reads from; tests replace these. */
export interface ClockSources {
  hrtimeMs(): number;
  uptimeMs(): number;
  wallMs(): number;
}

const system: ClockSources = {
  hrtimeMs: () => performance.now(),
  uptimeMs: () => uptime() * 1000,
  wallMs: () => Date.now(),
};

/** Steps of the wall clock up to this, alone or together, are taken for inaccuracy: `unexplainedMs` leaves them out. */
export const INACCURACY_MS = 25;
/** How fast the wall clock may be slewed while it is corrected (ntpd: 500 ppm). */
const SLEW = 0.001;
/** `os.uptime` reads a file (8 µs): look at least this often, not at every call. */
const LOOK_EVERY_MS = 1_000;
/** The resolution of `os.uptime`, with room: Linux reads hundredths, others whole seconds. */
const UPTIME_GRAIN_MS = process.platform === "linux" ? 20 : 1_100;
const TOGETHER_MS = 2;
const LATE_MS = 50;
/** `setTimeout` fires at once after a longer time. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * `max(hrtime, uptime)` since the start. On Linux hrtime stands still while the machine is suspended
 * and uptime does not; a frozen VM stops both, and only the wall clock shows it.
 */
export function systemClock(sources: ClockSources = system): Clock {
  const startHr = sources.hrtimeMs();
  const startUptime = sources.uptimeMs();
  let sleptMs = 0;
  let lookedAt = startHr;
  let wallOverHr = sources.wallMs() - startHr;
  let unexplainedMs = 0;

  function look(): void {
    const { hr, wall, up } = readTogether(sources);
    const slewedMs = (hr - lookedAt) * SLEW;
    lookedAt = hr;
    const sleptByNow = up - startUptime - (hr - startHr);
    const newlySlept = sleptByNow - sleptMs > UPTIME_GRAIN_MS ? sleptByNow - sleptMs : 0;
    sleptMs += newlySlept;
    const aheadMs = wall - hr - wallOverHr - newlySlept;
    const isStep = Math.abs(aheadMs) > INACCURACY_MS;
    if (isStep && aheadMs > 0) unexplainedMs += aheadMs;
    // The part that a slew explains is forgotten; the rest adds up until it counts as a step.
    const settledMs = isStep ? aheadMs : Math.max(-slewedMs, Math.min(slewedMs, aheadMs));
    wallOverHr += newlySlept + settledMs;
  }

  return {
    elapsedMs() {
      let hr = sources.hrtimeMs();
      const aheadMs = sources.wallMs() - hr - wallOverHr;
      if (Math.abs(aheadMs) > INACCURACY_MS || hr - lookedAt > LOOK_EVERY_MS) {
        look();
        hr = lookedAt;
      }
      return hr - startHr + sleptMs;
    },
    wallMs: () => sources.wallMs(),
    unexplainedMs: () => unexplainedMs,
    after(ms, run) {
      const timeout = setTimeout(run, Math.min(Math.max(0, Math.ceil(ms)), LONGEST_TIMER_MS));
      timeout.unref();
      return {
        cancel: () => clearTimeout(timeout),
        keepAlive: (yes) => (yes ? timeout.ref() : timeout.unref()),
      };
    },
  };
}

/** Reads the three clocks within one moment: a stop of the process between two readings would look like sleep. */
function readTogether(sources: ClockSources): { hr: number; wall: number; up: number } {
  for (let tries = 3; ; tries--) {
    const hr = sources.hrtimeMs();
    const wall = sources.wallMs();
    const up = sources.uptimeMs();
    if (tries === 0 || sources.hrtimeMs() - hr < TOGETHER_MS) return { hr, wall, up };
  }
}

/**
 * Whether something due then is later than a timer usually is: the process was stopped, or the event loop busy. A
 * reply may have arrived meanwhile; it is read after the timers, so a timeout waits for it once more.
 */
export const isLate = (dueAtMs: number, nowMs: number): boolean => nowMs > dueAtMs + LATE_MS;

/** A store's own clock, by which leases expire in it. */
export interface StoreClock {
  /** Monotonic; the same for every client of the store. */
  nowMs(): number;
  /** For tokens, which must rise across restarts. */
  wallMs(): number;
}
