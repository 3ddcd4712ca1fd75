import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { type Browser, type BrowserContextOptions, chromium, type Page } from "playwright-core";
import { findProgram } from "../../src/verify/lab/requirements.js";

/** A page in a real browser, and what went wrong on it. */
export interface Opened {
  readonly page: Page;
  /** Errors and warnings of the console, including violations of the page's policy. */
  readonly complaints: readonly string[];
  /** All requests but the one for the page itself. */
  readonly requests: readonly string[];
}

export function launchBrowser(): Promise<Browser> {
  return chromium.launch({
    executablePath: findProgram("chromium"),
    args: [
      ...["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
      ...["--disable-background-networking", "--disable-component-update", "--disable-sync"],
    ],
  });
}

/** Opens a page from a file, in a context of its own. */
export async function openHtml(
  browser: Browser,
  html: string,
  options: BrowserContextOptions = {},
): Promise<Opened> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-page-"));
  const file = join(folder, "page.html");
  writeFileSync(file, html);
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  context.once("close", () => rmSync(folder, { recursive: true, force: true }));
  const page = await context.newPage();
  const complaints: string[] = [];
  const requests: string[] = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("dialog", (dialog) => {
    complaints.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  const address = pathToFileURL(file).href;
  page.on("request", (request) => {
    if (request.url() !== address) requests.push(request.url());
  });
  await page.goto(address);
  return { page, complaints, requests };
}
