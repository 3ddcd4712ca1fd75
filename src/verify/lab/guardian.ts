import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/**
 * Reads until the pipe from the lab is closed, by the lab or by the end of its process. Then it
 * kills every process that works in the folder, runs the registered commands, newest first, and
 * removes the folder, except for anything that is still mounted there.
 */
const SCRIPT = `
trap '' HUP INT TERM PIPE
cat > /dev/null
ours() {
  ls -l /proc/[0-9]*/cwd 2> /dev/null | awk '
    { at = index($0, "/cwd -> "); if (!at) next
      link = substr($0, at + 8); sub(/ \\(deleted\\)$/, "", link)
      if (link != ENVIRON["folder"] && index(link, ENVIRON["folder"] "/") != 1) next
      pid = substr($0, 1, at - 1); sub(/.*\\//, "", pid); print pid }'
}
tries=0
while pids=$(ours); [ -n "$pids" ] && [ $tries -lt 500 ]; do
  kill -KILL $pids 2> /dev/null
  sleep 0.01
  tries=$((tries + 1))
done
failed=0
for name in $(ls -r "$folder" | grep '\\.end$'); do
  sh "$folder/$name" || { failed=1; echo "failed: $(cat "$folder/$name")" >&2; }
done
rm -rf --one-file-system "$folder" || failed=1
exit $failed
`;

/** Cleans up after the lab in every case: `close()` and SIGKILL go the same way. */
export class Guardian {
  readonly #folder: string;
  readonly #shell: ChildProcess;
  #registered = 0;
  #complaints = "";

  constructor(folder: string) {
    this.#folder = folder;
    // In a session of its own, which Ctrl-C in the terminal does not reach.
    this.#shell = spawn("sh", ["-c", SCRIPT], {
      cwd: "/",
      env: { PATH: process.env["PATH"], LC_ALL: "C", folder },
      stdio: ["pipe", "ignore", "pipe"],
      detached: true,
    });
    this.#shell.stderr!.setEncoding("utf8").on("data", (text) => {
      this.#complaints += text;
    });
    this.#shell.unref();
    for (const pipe of [this.#shell.stdin, this.#shell.stderr]) (pipe as unknown as Unref).unref();
  }

  /** Registers by a file, not by a message, so that the command is known before the thing that it undoes exists. */
  register(command: string): () => void {
    const number = String(++this.#registered).padStart(6, "0");
    const file = join(this.#folder, `${number}.end`);
    writeFileSync(file, `${command}\n`);
    return () => rmSync(file, { force: true });
  }

  async finish(): Promise<void> {
    this.#shell.ref();
    const closed = once(this.#shell, "close");
    this.#shell.stdin!.end();
    const [code] = (await closed) as [number | null];
    if (code === 0) return;
    throw new Error(`the lab in ${this.#folder} was not cleaned up: ${this.#complaints.trim()}`);
  }
}

interface Unref {
  unref(): void;
}
