/** One claim among those of this process on its name. */
export interface Turn {
  /** Settles when all claims that were asked before it have been answered; null: there are none. */
  readonly earlier: Promise<void> | null;
  end(): void;
}

/** The order in which this process asked for each name: a server takes concurrent requests in any order. */
export class Turns {
  readonly #last = new Map<string, Promise<void>>();

  begin(name: string): Turn {
    const earlier = this.#last.get(name) ?? null;
    let end = (): void => {};
    const ended = new Promise<void>((resolve) => {
      end = resolve;
    });
    const all = earlier === null ? ended : earlier.then(() => ended);
    this.#last.set(name, all);
    all.then(() => {
      if (this.#last.get(name) === all) this.#last.delete(name);
    });
    return { earlier, end };
  }
}
