import { REVOKED_KEPT } from "../../../core/store.js";
import { shortId } from "../../../stores/quorum/keys.js";
import type {
  NodeClaim,
  NodeClaimReply,
  NodeNameInfo,
  NodeRelease,
  NodeReleaseReply,
  NodeRenewal,
  NodeRenewReply,
  NodeRevocation,
  NodeState,
} from "../../../stores/quorum/node.js";
import { MOST_AHEAD_MICROS, MOST_WAKES } from "../../../stores/quorum/scripts.js";
import { bucketOf } from "../../../stores/redis/keys.js";
import {
  type Caller,
  countFromNow,
  type Data,
  describeRecord,
  isHeldBy,
  type Last,
  type Marker,
  type NodeRecord,
  noData,
  type Revocation,
  textOf,
  type Waiting,
} from "./server-data.js";

/**
 * The server behind one node of a quorum: the rules of the Lua scripts in `stores/quorum/lua`, in their order.
 * The methods that decide something are replaced by mutants.
 */
export class SimulatedServer {
  readonly #micros: () => number;
  readonly #revoked: (revocation: NodeRevocation) => void;
  #runId: string;
  #data = noData();
  /** A server that has restarted knows no scripts, and a client that loads one has it examined. */
  #knowsScripts = false;
  /** By channel. */
  readonly #listeners = new Map<string, (name: string) => void>();

  /** `micros`: its clock, in whole µs. `revoked`: called after each revocation. */
  constructor(
    runId: string,
    micros: () => number,
    revoked: (revocation: NodeRevocation) => void = () => {},
  ) {
    this.#runId = runId;
    this.#micros = micros;
    this.#revoked = revoked;
  }

  join(caller: Caller): NodeState {
    const recoveringFor = this.examine({ ...caller, marker: "" });
    return {
      runId: this.#runId,
      recoveringForMs: Math.round(recoveringFor / 1_000),
      marker: this.marker,
      isNew: this.#data.marker?.state === "new",
      micros: this.micros(),
    };
  }

  settle(caller: Caller, marker: string): void {
    this.examine({ ...caller, marker: "" });
    const present = this.#data.marker!;
    if (this.marker === marker && present.state === "new") {
      this.#data.marker = { ...present, state: "", since: 0 };
    }
  }

  claim(caller: Caller, claim: NodeClaim): NodeClaimReply {
    const { name, id, ttlMs, seq, atLeastMs, register } = claim;
    const micros = this.micros();
    const recoveringFor = this.examine(caller);
    if (recoveringFor > 0) {
      return { kind: "recovering", forMs: Math.round(recoveringFor / 1_000), micros };
    }
    const other = this.#read(name);
    const over = this.#data.over.get(name);
    if (over?.id === id && over.until > micros) {
      return { kind: "busy", id: shortId(id), holder: "", freeInMs: 0, micros };
    }
    if (other === undefined) {
      const { highest } = this.last(name);
      const isTaken = this.takes(claim.number, highest, micros, caller.maxTtlMs * 250);
      const number = isTaken ? claim.number : Math.max(highest + 1, micros);
      this.#record(claim, { number, base: highest, closedForMs: atLeastMs });
      this.claimed(name, number);
      if (register === "always") this.#register(name, caller.channel, ttlMs);
      return { kind: "recorded", number, micros };
    }
    if (isHeldBy(other, id, micros)) {
      if (seq >= other.seq) {
        other.seq = seq;
        const expiry = micros + ttlMs * 1_000;
        if (expiry > other.expiry) Object.assign(other, { expiry, ttlMs });
      }
      return { kind: "recorded", number: other.number, micros };
    }
    if (register !== "never") this.#register(name, caller.channel, ttlMs);
    const freeInMs = (Math.max(other.expiry, other.closed) - micros) / 1_000;
    return { kind: "busy", id: shortId(other.id), holder: other.holder, freeInMs, micros };
  }

  raise(caller: Caller, name: string, id: string, number: number): boolean {
    const micros = this.micros();
    if (this.examine(caller) > 0) return false;
    const record = this.#read(name);
    if (record === undefined || !this.mayRaise(isHeldBy(record, id, micros))) return false;
    if (number === record.number) return true;
    const isPlausible =
      number >= micros - caller.maxTtlMs * 250 &&
      number <= Math.max(micros, record.number) + MOST_AHEAD_MICROS;
    if (!this.isHigher(number, record.number) || !isPlausible) return false;
    record.number = number;
    this.raised(name, number);
    return true;
  }

  release(caller: Caller, release: NodeRelease): NodeReleaseReply {
    const { name, id, number, unused, wakes, keptOutMs } = release;
    this.examine(caller);
    const micros = this.micros();
    const { highest, claimed } = this.last(name);
    if (this.closesFillIn(claimed, number)) {
      this.setLast(name, Math.max(highest, number + 1), number + 1);
    }
    const record = this.#read(name);
    if (record === undefined) this.#keepOut(name, id, keptOutMs);
    if (record === undefined || !this.mayDelete(record.id === id)) return "absent";
    const hasExpired = record.expiry <= micros;
    if (record.closed > micros && !unused) {
      if (!hasExpired) Object.assign(record, { expiry: micros, ttlMs: 0 });
      return hasExpired ? "absent" : "released";
    }
    this.#data.records.delete(name);
    this.#keepOut(name, id, keptOutMs);
    const isAwaited = wakes && this.#wakeNext(name);
    if (hasExpired) return "absent";
    return isAwaited ? "awaited" : "released";
  }

  pass(caller: Caller, name: string): void {
    this.examine(caller);
    if (this.#read(name) === undefined) this.#wakeNext(name);
  }

  renew(renewals: readonly NodeRenewal[]): readonly NodeRenewReply[] {
    return renewals.map((renewal) => this.#renew(renewal));
  }

  revoke(revocation: NodeRevocation): void {
    const { name, id } = revocation;
    const record = this.#read(name);
    const isThere = record !== undefined && shortId(record.id) === id;
    const number = Math.max(revocation.number, isThere ? record.number : 0);
    if (isThere) this.#data.records.delete(name);
    const { highest, claimed } = this.last(name);
    this.setLast(name, Math.max(highest, number + 1), Math.max(claimed, number + 1));
    const list = this.#revocations(name);
    if (!list.some((one) => one.id === id)) {
      const at = this.micros();
      const all = [...list, { ...revocation, number, at }].slice(-REVOKED_KEPT.many);
      this.#data.revoked.set(name, { list: all, expiry: at + REVOKED_KEPT.ms * 1_000 });
    }
    if (isThere) this.#wakeNext(name);
    this.#revoked(revocation);
  }

  inspect(name: string): NodeNameInfo {
    const micros = this.micros();
    const record = this.#read(name);
    return {
      record: record === undefined ? null : describeRecord(record, micros),
      revoked: this.#revocations(name).map(({ id, holder, number, by, why, at }) => {
        return { id, holder, token: BigInt(number), by, why, agoMs: (micros - at) / 1_000 };
      }),
    };
  }

  /** The names that the node has a record of. */
  names(prefix: string): readonly string[] {
    return [...this.#data.records.keys()].filter((name) => name.startsWith(prefix));
  }

  /** The marker as text; empty if there is none. */
  get marker(): string {
    return this.#data.marker === null ? "" : textOf(this.#data.marker);
  }

  /** A server that has restarted is out of service until the first request has examined it. */
  get isInService(): boolean {
    const { marker } = this.#data;
    return marker?.since === 0 && marker.runId === this.#runId;
  }

  subscribe(channel: string, listener: (name: string) => void): void {
    this.#listeners.set(channel, listener);
  }

  unsubscribe(channel: string): void {
    this.#listeners.delete(channel);
  }

  /** Starts again as another process of the server, with these data. */
  restart(runId: string, data: Data | null): void {
    this.#runId = runId;
    this.#data = data ?? noData();
    this.#knowsScripts = false;
    this.#listeners.clear();
  }

  /** FLUSHALL. */
  flush(): void {
    this.#data = noData();
  }

  /** The record of a name is lost, and nothing else. */
  forget(name: string): void {
    this.#data.records.delete(name);
    this.#data.over.delete(name);
  }

  /** A copy of the data, as a backup has it. */
  copy(): Data {
    return structuredClone(this.#data);
  }

  /** Drops records that have expired, as a server does in time; one whose clock is set back can't revive them. */
  dropExpired(): void {
    for (const name of [...this.#data.records.keys()]) {
      if (this.#read(name) === undefined) this.#data.records.delete(name);
    }
  }

  /** Finds out whether data are missing; returns for how long the node stays out of the vote, in µs. */
  protected examine({ marker, maxTtlMs, fsync }: Caller): number {
    const present = this.#data.marker;
    const isKnown = present !== null && this.#knowsScripts && marker === textOf(present);
    this.#knowsScripts = true;
    if (isKnown) return 0;
    const micros = this.micros();
    const longestMs = Math.max(maxTtlMs, present?.maxTtlMs ?? 0);
    let state: Marker["state"] = present === null && this.#data.last.size === 0 ? "new" : "lost";
    let since = micros;
    let knownFsync = fsync;
    if (present?.runId === this.#runId) {
      state = present.state;
      since = Math.min(present.since, micros);
      if (fsync === "unknown") knownFsync = present.fsync;
    } else if (present?.since === 0 && present.fsync === "always" && fsync === "always") {
      since = 0;
    }
    if (since > 0 && micros - since >= longestMs * 1_000) since = 0;
    if (since === 0) state = "";
    const runId = this.#runId;
    this.#data.marker = { runId, maxTtlMs: longestMs, fsync: knownFsync, state, since };
    return since > 0 ? since + longestMs * 1_000 - micros : 0;
  }

  /** Whether a claim is recorded under the number that the client proposes. */
  protected takes(proposed: number, highest: number, micros: number, spread: number): boolean {
    return proposed > highest && Math.abs(proposed - micros) <= spread;
  }

  /** A claim was recorded under this number, which is higher than all before. */
  protected claimed(name: string, number: number): void {
    this.setLast(name, number, number);
  }

  protected mayRaise(isHeld: boolean): boolean {
    return isHeld;
  }

  protected isHigher(number: number, recorded: number): boolean {
    return number > recorded;
  }

  /** A record was raised to this number. */
  protected raised(name: string, number: number): void {
    const { highest, claimed } = this.last(name);
    this.setLast(name, Math.max(highest, number), Math.max(claimed, number));
  }

  protected mayExtend(base: number, token: number): boolean {
    return base <= token;
  }

  protected mayFillIn(claimed: number, token: number): boolean {
    return claimed <= token;
  }

  /** Whether a release keeps its grant from being filled in by a late renewal. */
  protected closesFillIn(claimed: number, token: number): boolean {
    return claimed <= token;
  }

  protected mayDelete(isItsOwn: boolean): boolean {
    return isItsOwn;
  }

  /** The node's clock. */
  protected micros(): number {
    return this.#micros();
  }

  protected last(name: string): Last {
    return this.#data.last.get(bucketOf(name)) ?? { highest: 0, claimed: 0 };
  }

  #renew(renewal: NodeRenewal): NodeRenewReply {
    const { name, id, number, ttlMs, seq, closedForMs } = renewal;
    const micros = this.micros();
    const record = this.#read(name);
    if (record !== undefined && isHeldBy(record, id, micros)) {
      if (!this.mayExtend(record.base, number)) return { kind: "no" };
      if (seq >= record.seq) {
        record.seq = seq;
        record.ttlMs = ttlMs;
        record.expiry = micros + ttlMs * 1_000;
      }
      return { kind: "yes", seq: record.seq, ttlMs: record.ttlMs };
    }
    const { highest, claimed } = this.last(name);
    if (record === undefined && number >= 0 && this.mayFillIn(claimed, number)) {
      this.#record(renewal, { number, base: number, closedForMs });
      this.setLast(name, Math.max(highest, number), claimed);
      return { kind: "filled" };
    }
    const revoked = this.#revocations(name).find((one) => one.id === shortId(id));
    if (revoked !== undefined) return { kind: "no", why: `by ${revoked.by}: ${revoked.why}` };
    return { kind: "no", isTaken: record !== undefined && record.id !== id };
  }

  #read(name: string): NodeRecord | undefined {
    const record = this.#data.records.get(name);
    const micros = this.micros();
    if (record !== undefined) countFromNow(record, micros);
    const isOver = record === undefined || (record.expiry <= micros && record.closed <= micros);
    return isOver ? undefined : record;
  }

  #record(
    { name, id, ttlMs, seq, holder }: NodeClaim | NodeRenewal,
    { number, base, closedForMs }: { number: number; base: number; closedForMs: number },
  ): void {
    const since = this.micros();
    const expiry = since + ttlMs * 1_000;
    const closed = closedForMs > 0 ? since + closedForMs * 1_000 : 0;
    const record = { id, number, base, expiry, seq, ttlMs, since, closed, holder };
    this.#data.records.set(name, record);
    this.#data.over.delete(name);
  }

  #keepOut(name: string, id: string, ms: number): void {
    if (ms > 0) this.#data.over.set(name, { id, until: this.micros() + Math.ceil(ms) * 1_000 });
  }

  protected setLast(name: string, highest: number, claimed: number): void {
    this.#data.last.set(bucketOf(name), { highest, claimed });
  }

  #revocations(name: string): readonly Revocation[] {
    const kept = this.#data.revoked.get(name);
    return kept !== undefined && kept.expiry > this.micros() ? kept.list : [];
  }

  #register(name: string, channel: string, ttlMs: number): void {
    const waiting = this.#waitingFor(name);
    if (!waiting.channels.includes(channel)) waiting.channels.push(channel);
    waiting.expiry = Math.max(waiting.expiry, this.micros() + Math.ceil(ttlMs) * 1_000);
    this.#data.waiting.set(name, waiting);
  }

  /** Wakes the process that has waited longest and still listens. */
  #wakeNext(name: string): boolean {
    const { channels } = this.#waitingFor(name);
    for (let tries = 0; tries < MOST_WAKES && channels.length > 0; tries++) {
      const listener = this.#listeners.get(channels.shift()!);
      listener?.(name);
      if (listener !== undefined) return true;
    }
    return false;
  }

  #waitingFor(name: string): Waiting {
    const waiting = this.#data.waiting.get(name);
    const isThere =
      waiting !== undefined && waiting.channels.length > 0 && waiting.expiry > this.micros();
    return isThere ? waiting : { channels: [], expiry: 0 };
  }
}
