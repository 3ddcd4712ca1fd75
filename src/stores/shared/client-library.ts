import { UnsupportedError } from "../../core/errors.js";

/**
 * Imports the first of these packages that is installed, which is the user's choice. The names are
 * variables, so that no bundler follows them. Throws UnsupportedError with the advice if there is none.
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
