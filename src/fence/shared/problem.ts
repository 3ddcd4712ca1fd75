import type { ServerResponse } from "node:http";

/** The problem document (RFC 9457) of a refusal over HTTP. */
export interface Problem {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly [extra: string]: string | number | readonly string[];
}

export const PROBLEM_JSON = "application/problem+json";

/** Thrown inside a handler of ours, and sent as its problem document. */
export class Refusal extends Error {
  readonly problem: Problem;
  readonly headers: Readonly<Record<string, string>>;

  constructor(problem: Problem, headers: Readonly<Record<string, string>> = {}, cause?: unknown) {
    super(problem.detail, { cause });
    this.problem = problem;
    this.headers = headers;
  }

  /** As a response in the style of Fetch. */
  toResponse(): Response {
    const { status } = this.problem;
    return new Response(JSON.stringify(this.problem), { status, headers: this.#allHeaders() });
  }

  /** Returns false if the response has begun: then nothing was sent. */
  send(response: ServerResponse): boolean {
    if (response.headersSent) return false;
    response.writeHead(this.problem.status, this.#allHeaders());
    response.end(JSON.stringify(this.problem));
    return true;
  }

  #allHeaders(): Record<string, string> {
    return { "content-type": PROBLEM_JSON, ...this.headers };
  }
}
