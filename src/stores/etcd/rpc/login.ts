import { Code, EtcdError } from "./errors.js";
import type { Grpc, GrpcMetadata } from "./grpc.js";

/** The metadata of every call: that a leader is required and, if there is a user, its token. */
export class Login {
  /** Null while a token is still to be requested. */
  metadata: GrpcMetadata | null;
  readonly #plain: GrpcMetadata;
  readonly #authenticate: (() => Promise<string>) | null;
  #requested: Promise<GrpcMetadata> | null = null;

  /** `authenticate`: requests a token for the user; null: there is none. */
  constructor(grpc: Grpc, authenticate: (() => Promise<string>) | null) {
    this.#plain = new grpc.Metadata();
    // A member that is cut off from its leader then refuses at once, not after a timeout.
    this.#plain.set("hasleader", "true");
    this.#authenticate = authenticate;
    this.metadata = authenticate === null ? this.#plain : null;
  }

  /** Whether a new token may help after a refusal. */
  get hasUser(): boolean {
    return this.#authenticate !== null;
  }

  /** All callers share one request. */
  ready(): Promise<GrpcMetadata> {
    if (this.metadata !== null) return Promise.resolve(this.metadata);
    this.#requested ??= this.#request().finally(() => {
      this.#requested = null;
    });
    return this.#requested;
  }

  /** This token was refused; another caller may have renewed it since. */
  renew(stale: GrpcMetadata): void {
    if (this.#authenticate !== null && this.metadata === stale) this.metadata = null;
  }

  async #request(): Promise<GrpcMetadata> {
    const metadata = this.#plain.clone();
    try {
      const token = await this.#authenticate!();
      setToken(metadata, token);
    } catch (error) {
      // The server has no users yet, and lets everybody do everything.
      if (!(error instanceof EtcdError && /authentication is not enabled/.test(error.message))) {
        throw error;
      }
    }
    this.metadata = metadata;
    return metadata;
  }
}

/** The library's own error would repeat the token. */
function setToken(metadata: GrpcMetadata, token: string): void {
  try {
    metadata.set("token", token);
  } catch {
    throw new EtcdError("the server gave a token that can't be sent", {
      grpcCode: Code.INTERNAL,
      executed: "no",
      endpoint: null,
    });
  }
}
