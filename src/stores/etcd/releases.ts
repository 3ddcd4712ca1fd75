import type { Release, ReleaseAnswer } from "../../core/store.js";
import { answerMissing, giveUp } from "../shared/sessions/releases.js";
import { slices } from "../shared/slices.js";
import type { EtcdContext } from "./context.js";

const RELEASES_PER_TXN = 50;

/** Deletes the keys of grants and tickets. */
export async function release(
  context: EtcdContext,
  releases: readonly Release[],
): Promise<readonly ReleaseAnswer[]> {
  const answers: ReleaseAnswer[] = [];
  for (const some of slices(releases, RELEASES_PER_TXN)) {
    answers.push(...(await releaseTogether(context, some)));
  }
  return answers;
}

async function releaseTogether(
  context: EtcdContext,
  releases: readonly Release[],
): Promise<readonly ReleaseAnswer[]> {
  const { claims, closedNames, keys, transactions } = context;
  const wasHeld = releases.map((one) => giveUp(claims, one));
  const opens = releases.map(({ name, grantId, unused = false }) =>
    closedNames.opensOnRelease(name, grantId, unused),
  );
  const success = releases.map(({ name, grantId }, i) => ({
    delete: opens[i] ? keys.claimAndAtLeast(name, grantId) : { key: keys.claim(name, grantId) },
  }));
  const names = releases.map(({ name }) => name);
  const { responses, repeated } = await claims.whileReleasing(
    releases.map(({ name, grantId }) => keys.claim(name, grantId)),
    transactions.sendBatched(names, { success }, true),
  );
  return Promise.all(
    releases.map((one, i) => {
      if (opens[i]) closedNames.opened(one.name, one.grantId);
      if (responses[i]!.delete!.deleted > 0) return "released";
      return answerMissing(context, one, repeated && wasHeld[i]!);
    }),
  );
}
