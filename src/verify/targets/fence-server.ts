import { UnsupportedError } from "../../core/errors.js";
import { Lab } from "../lab/lab.js";
import { missing } from "../lab/requirements.js";
import type { RegisterFence, RegisterPlace } from "../traffic/registers/register.js";

/** Starts a server for the fence of the register, which no fault hits, and ends it afterwards. */
export async function withFenceServer<T>(
  fence: RegisterFence | undefined,
  act: (register: Omit<RegisterPlace, "space"> | undefined) => Promise<T>,
): Promise<T> {
  if (fence === undefined || fence === "sqlite") return act(undefined);
  await using lab = await Lab.open();
  const lacking = missing([fence]);
  if (lacking !== null) {
    throw new UnsupportedError(
      `the fence ${fence} needs a server that is not installed here: ${lacking.advice}`,
    );
  }
  const { url } = await lab[fence]();
  return await act({ fence, url });
}
