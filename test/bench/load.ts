/** A module of bench/, which has no types. */
export function load<T>(path: string): Promise<T> {
  return import(/* @vite-ignore */ new URL(`../../bench/${path}`, import.meta.url).href);
}
