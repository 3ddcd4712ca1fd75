import { plain } from "../check/draw.js";

/** Text that is HTML already. All other text is escaped when it is put into HTML. */
export class Markup {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

export type Content = string | number | Markup | undefined | readonly Content[];

/**
 * HTML with values in it. Strings and numbers are escaped, also for attributes in double quotes.
 *
 * @example
 * html`<td>${name}</td>`
 */
export function html(parts: TemplateStringsArray, ...values: readonly Content[]): Markup {
  return new Markup(parts.map((part, i) => part + textOf(values[i])).join(""));
}

/** Escapes control characters, so that an untrusted text can't reorder, hide or break the text around it. */
export const harmless = (text: string): string => plain(text.toWellFormed());

/** JSON that is safe inside `<script>`: without `<`, and without separators that end a line in JavaScript. */
export const scriptJson = (value: unknown): Markup =>
  new Markup(
    JSON.stringify(value).replaceAll(
      /[<>&\u2028\u2029]/g,
      (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`,
    ),
  );

function textOf(value: Content): string {
  if (value === undefined) return "";
  if (value instanceof Markup) return value.text;
  if (typeof value === "object") return value.map(textOf).join("");
  return escapeHtml(String(value));
}

const ENTITIES: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  '"': "&quot;",
  "'": "&#39;",
};

const escapeHtml = (text: string): string =>
  harmless(text).replaceAll(/[&<>"']/g, (sign) => ENTITIES[sign]!);
