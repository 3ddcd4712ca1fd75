import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { connect } from "../../connect.js";
import type { Locks } from "../../locks.js";
import { openSqlite } from "../../stores/sqlite/driver.js";
import { Lab } from "../../verify/lab/lab.js";
import { CliError, Exit } from "../exit.js";
import { print, style } from "../output.js";
import { sqliteUrl } from "../store.js";
import { WorkerProcess } from "../worker-process.js";
import { type Actor, Data, type Role } from "./actor.js";

const SCRIPT = fileURLToPath(new URL("./actor-process.js", import.meta.url));
const WIDTH = 76;
const PATIENCE_MS = 60_000;

/** An incident, played by real processes: first as it went wrong, then with the fix. */
export interface Story {
  /** The word for the command line. */
  readonly name: string;
  readonly title: string;
  /** The events, in a few sentences. */
  readonly tells: string;
  /** The headings of the two parts. */
  readonly failure: string;
  readonly fix: string;
  readonly lesson: string;
  /** A page of docs/ with the fix. */
  readonly link: string;
  /** The servers that it starts. */
  readonly needs?: "redis";
  /** Leads the actors: waits for what they say, and gives them their cues. Runs once for each part. */
  direct(stage: Stage): Promise<void>;
  /** The life of one process. */
  act(actor: Actor): Promise<void>;
}

/** The part that all stages of one `holdfast story` share. */
export interface Theatre {
  /** Removed at the end. */
  readonly folder: string;
  readonly launcher: readonly string[];
  /** Killed at the end, whatever happens. */
  readonly players: Player[];
}

/** One part of a story: its processes, its data, and the lines that are printed. */
export class Stage {
  readonly fixed: boolean;
  readonly folder: string;
  /** The store of the locks of actors that are cast from now on. */
  url: string;
  readonly #story: Story;
  readonly #theatre: Theatre;
  #lab: Lab | null = null;
  #data: Data | null = null;
  #locks: Locks | null = null;
  /** How this part ended. */
  isGood: boolean | null = null;

  constructor(story: Story, theatre: Theatre, fixed: boolean) {
    this.#story = story;
    this.#theatre = theatre;
    this.fixed = fixed;
    this.folder = join(theatre.folder, fixed ? "fix" : "failure");
    this.url = sqliteUrl(join(this.folder, "locks.db"));
    mkdirSync(this.folder);
  }

  async play(): Promise<void> {
    const heading = this.fixed ? `2. ${this.#story.fix}` : `1. ${this.#story.failure}`;
    print(`\n${style(process.stdout, "bold", heading)}`);
    try {
      await this.#story.direct(this);
    } finally {
      this.#data?.db.close();
      await this.#locks?.close();
      await this.#lab?.close();
    }
  }

  /** The database of the story, made with these statements at the first call. */
  async data(sql = ""): Promise<Data> {
    this.#data ??= new Data(await openSqlite(join(this.folder, "data.db")));
    this.#data.db.exec(sql);
    return this.#data;
  }

  /** Starts a process in a column of its own, one of `columns`. */
  cast(name: string, column = 0, columns = 2): Player {
    const { name: story } = this.#story;
    const { folder, fixed, url } = this;
    const role: Role = { story, name, fixed, folder, url };
    const player = new Player(role, this.#theatre, Math.floor(WIDTH / columns) * column);
    this.#theatre.players.push(player);
    return player;
  }

  /** The director's own view of the locks. */
  async locks(): Promise<Locks> {
    this.#locks ??= await connect(this.url, { holder: "director" });
    return this.#locks;
  }

  /** Waits until so many processes are in the queue of a name. */
  async waiters(name: string, count: number): Promise<void> {
    const locks = await this.locks();
    await until(async () => ((await locks.inspect(name))?.waiting ?? 0) === count);
  }

  /** The servers of this part. */
  async lab(): Promise<Lab> {
    this.#lab ??= await Lab.open();
    return this.#lab;
  }

  /** Prints what nobody says: a fault, time that passes. */
  note(text: string): void {
    print(style(process.stdout, "dim", `   -- ${text} --`));
  }

  /** Prints how it ended. */
  ends(isGood: boolean, text: string): void {
    this.isGood = isGood;
    const mark = style(process.stdout, isGood ? "green" : "red", isGood ? "right:" : "wrong:");
    print(`   ${mark} ${text}`);
  }
}

/** Looks until a condition is true. */
export async function until(isTrue: () => Promise<boolean>): Promise<void> {
  const endMs = performance.now() + PATIENCE_MS;
  while (!(await isTrue())) {
    if (performance.now() > endMs) {
      const text = `nothing happened for ${PATIENCE_MS / 1_000} s; play the story again when the machine is less busy`;
      throw new CliError(Exit.failed, text);
    }
    await sleep(20);
  }
}

/** A process of a story, seen from the director. */
export class Player extends WorkerProcess<string> {
  readonly #column: number;

  constructor(role: Role, { launcher, folder }: Theatre, column: number) {
    super({ name: role.name, script: SCRIPT, task: role, launcher, folder });
    this.#column = column;
  }

  /** Prints the next lines of this actor; resolves to the last one. */
  async says(lines = 1): Promise<string> {
    let text = "";
    for (let i = 0; i < lines; i++) {
      text = await this.next("a line of the story");
      this.#print(text);
    }
    return text;
  }

  /** Lets it go on. */
  cue(word = ""): this {
    this.send(word);
    return this;
  }

  pause(): void {
    this.signal("SIGSTOP");
    this.#print("(is paused)");
  }

  resume(): void {
    this.#print("(goes on)");
    this.signal("SIGCONT");
  }

  async kill(): Promise<void> {
    this.signal("SIGKILL");
    await this.ended();
    this.#print("(is killed)");
  }

  #print(text: string): void {
    const name = style(process.stdout, "bold", this.name);
    print(`   ${"".padEnd(this.#column)}${name}  ${text}`);
  }
}

/** A is paused past its lease, B takes over and is done, A goes on. */
export async function playPause(stage: Stage): Promise<void> {
  const a = stage.cast("A");
  await a.says();
  a.pause();
  const b = stage.cast("B", 1);
  await b.says();
  await b.cue().says();
  a.cue().resume();
  await a.says();
}
