/** Collects the requests of one turn of the event loop and sends them together. */
export class TurnBatcher<Request> {
  readonly #send: (requests: readonly Request[]) => void;
  #requests: Request[] = [];

  constructor(send: (requests: readonly Request[]) => void) {
    this.#send = send;
  }

  add(request: Request): void {
    this.#requests.push(request);
    // nextTick comes after everything that the present replies set off, and before new input is read.
    if (this.#requests.length === 1) process.nextTick(() => this.#flush());
  }

  #flush(): void {
    const requests = this.#requests;
    this.#requests = [];
    this.#send(requests);
  }
}
