import { Code, EtcdError } from "./errors.js";
import type { Grpc, GrpcMetadata } from "./grpc.js";

type Authenticate = (name: string, password: string) => Promise<string>;

/** What goes with every call: that a leader is required and, where there is a user, its token. */
export class Login {
  /** Null while a token has to be asked for. */
  metadata: GrpcMetadata | null;
  readonly #plain: GrpcMetadata;
  readonly #authenticate: (() => Promise<string>) | null;
  #asking: Promise<GrpcMetadata> | null = null;

  constructor(
    grpc: Grpc,
    user?: {
      readonly name: string;
      readonly password: string;
      readonly authenticate: Authenticate;
    },
  ) {
    this.#plain = new grpc.Metadata();
    // A member that is cut off from its leader refuses at once instead of when time is up.
    this.#plain.set("hasleader", "true");
    this.#authenticate =
      user === undefined ? null : () => user.authenticate(user.name, user.password);
    this.metadata = user === undefined ? this.#plain : null;
  }

  /** Whether a new token may help who was refused. */
  get hasUser(): boolean {
    return this.#authenticate !== null;
  }

  /** One asks for all. */
  ready(): Promise<GrpcMetadata> {
    if (this.metadata !== null) return Promise.resolve(this.metadata);
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = null;
    });
    return this.#asking;
  }

  /** This one was refused; another may have brought a new one since. */
  renew(stale: GrpcMetadata): void {
    if (this.#authenticate !== null && this.metadata === stale) this.metadata = null;
  }

  async #ask(): Promise<GrpcMetadata> {
    const metadata = this.#plain.clone();
    try {
      const token = await this.#authenticate!();
      setToken(metadata, token);
    } catch (error) {
      // There are no users yet: whoever asks may do everything.
      if (!(error instanceof EtcdError && /authentication is not enabled/.test(error.message))) {
        throw error;
      }
    }
    this.metadata = metadata;
    return metadata;
  }
}

/** What is refused here would be repeated in the message. */
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
