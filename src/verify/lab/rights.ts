import { spawnSync } from "node:child_process";
import { statSync } from "node:fs";
import { dirname } from "node:path";

/** Rights that the kernel must grant. Each is tried in namespaces that end with the trial. */
const TRIALS = {
  "network namespaces": {
    script: "ip link add left type veth peer name right && ip link add middle type bridge",
    reason:
      "network namespaces with veth and bridge are not permitted here (CAP_SYS_ADMIN, CAP_NET_ADMIN)",
  },
  nft: {
    script:
      "nft add table bridge holdfast && " +
      "nft 'add chain bridge holdfast way { type filter hook forward priority 0; }'",
    reason:
      "nft rules are not permitted here (CAP_NET_ADMIN, nf_tables with bridges in the kernel)",
  },
  "loop mounts": {
    script: `mount -t tmpfs none /mnt && cd /mnt && mkdir disk && truncate -s 1M image &&
      mkfs.ext4 -q -F image && mount -o loop image disk && touch disk/file && umount disk`,
    reason: "loop mounts are not permitted here (CAP_SYS_ADMIN, a loop device, ext4 in the kernel)",
  },
} as const;

/** A right that the kernel may refuse. */
export type Right = keyof typeof TRIALS;
export const RIGHTS = Object.keys(TRIALS) as readonly Right[];

const tried = new Map<Right, string | null>();

/** Null, or the reason why the right is missing. Tried once. */
export function lackingRight(right: Right): string | null {
  let lacking = tried.get(right);
  if (lacking === undefined) {
    const { script, reason } = TRIALS[right];
    lacking = permits(script) ? null : reason;
    tried.set(right, lacking);
  }
  return lacking;
}

function permits(script: string): boolean {
  const env = { PATH: `${process.env["PATH"]}:/usr/sbin:/sbin` };
  const args = ["--net", "--mount", "--propagation", "private", "sh", "-c", script];
  return spawnSync("unshare", args, { env, stdio: "ignore", timeout: 10_000 }).status === 0;
}

const OTHERS = { read: 0o4, search: 0o1 };

/** Null, or the reason why another user can't load a program from this file. */
export function hiddenFromOthers(file: string): string | null {
  const lacks = (path: string, right: number): boolean => (statSync(path).mode & right) === 0;
  if (lacks(file, OTHERS.read)) return `other users may not read ${file}`;
  for (let folder = dirname(file); ; folder = dirname(folder)) {
    if (lacks(folder, OTHERS.search)) return `other users may not search ${folder}`;
    if (folder === dirname(folder)) return null;
  }
}
