#!/usr/bin/env node
// Takes a report of `holdfast verify --report out.html` and writes pictures of it, for the docs:
//   node scripts/report-pictures.mjs out.html pictures/
// Wide and narrow, light and dark, the whole page and the time lines zoomed in. The report's fonts
// are those of the machine; Debian's fonts-inter and fonts-jetbrains-mono are the first choice.
import { mkdirSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";
import { findProgram } from "../dist/verify/lab/requirements.js";

const [file, folder = "."] = process.argv.slice(2);
if (file === undefined) {
  console.error("usage: node scripts/report-pictures.mjs <report.html> [folder]");
  process.exit(2);
}
const name = basename(file).replace(/\.html?$/, "");
mkdirSync(folder, { recursive: true });

const browser = await chromium.launch({
  executablePath: findProgram("chromium"),
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
});
try {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [1280, 400]) {
      const page = await browser.newPage({
        viewport: { width, height: 900 },
        deviceScaleFactor: 2,
        colorScheme,
      });
      await page.goto(pathToFileURL(resolve(file)).href);
      const path = (part) => join(folder, `${name}-${width}-${colorScheme}-${part}.png`);
      await page.screenshot({ path: path("top") });
      await page.screenshot({ path: path("page"), fullPage: true, scale: "css" });
      const timeLines = page.locator("#time-lines");
      await timeLines.screenshot({ path: path("time-lines") });
      await page.locator("input[value=name]").check({ force: true });
      await timeLines.screenshot({ path: path("names") });
      await page.locator("input[value=worker]").check({ force: true });
      const jump = timeLines.locator("[data-jump]").first();
      if ((await jump.count()) > 0) await jump.click();
      else for (let i = 0; i < 5; i++) await page.locator("[data-zoom=in]").click();
      await timeLines.screenshot({ path: path("zoomed") });
      await page.close();
    }
  }
} finally {
  await browser.close();
}
