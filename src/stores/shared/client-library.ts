import { UnsupportedError } from "../../core/errors.js";

/**
 * Imports the first of these packages that the user has installed. The name is a variable, so that bundlers
 * do not include the package. Throws UnsupportedError with the advice if none is installed.
 */
export async function importInstalled(
  packages: readonly string[],
  advice: string,
): Promise<{ readonly name: string; readonly module: unknown }> {
  const errors: unknown[] = [];
  for (const name of packages) {
    try {
      return { name, module: await import(name) };
    } catch (error) {
      errors.push(error);
    }
  }
  throw new UnsupportedError(advice, new AggregateError(errors));
}
