import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { renderReport } from "../../src/verify/report/render.js";
import { launchBrowser, type Opened, openHtml } from "../support/browser.js";
import { describeWith } from "../support/needs.js";
import { busyVerification, type Verification } from "../support/verification.js";

const BROKEN = busyVerification({ seed: 7, forgetsAtMs: 31_500 });
const pageOf = ({ result, history }: Verification): string => renderReport(result, history);

/** The range that the time lines show, in ms since the first event. */
async function range(page: Page): Promise<{ fromMs: number; toMs: number; spanMs: number }> {
  // The text changes with the next frame.
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => resolve(null))));
  const text = (await page.locator(".range").textContent())!.replaceAll("−", "-");
  const [fromMs, toMs] = [...text.matchAll(/([+-][\d.]+) s/g)].map(([, s]) => Number(s) * 1_000);
  return { fromMs: fromMs!, toMs: toMs!, spanMs: toMs! - fromMs! };
}

async function boxOf(page: Page, selector: string) {
  await page.locator(selector).scrollIntoViewIfNeeded();
  return (await page.locator(selector).boundingBox())!;
}

const tipOf = async (page: Page): Promise<string> =>
  (await page.locator(".tip").isVisible()) ? await page.locator(".tip").innerText() : "";

/** Moves the mouse down the canvas until the details show this text. */
async function hoverUntil(page: Page, share: number, wanted: RegExp): Promise<string> {
  const { x, y, width, height } = await boxOf(page, ".stage");
  for (let down = 30; down < height; down += 4) {
    await page.mouse.move(x + width * share, y + down);
    const tip = await tipOf(page);
    if (wanted.test(tip)) return tip;
  }
  throw new Error(`no details like ${wanted}`);
}

describeWith(["browser"], "a report in a browser", () => {
  let browser: Browser;
  beforeAll(async () => {
    browser = await launchBrowser();
  });
  afterAll(async () => {
    await browser?.close();
  });

  async function open(html: string, options: Parameters<typeof openHtml>[2] = {}): Promise<Opened> {
    const opened = await openHtml(browser, html, options);
    onTestFinished(() => opened.page.context().close());
    await opened.page.locator("html[data-ready=yes]").waitFor({ timeout: 5_000 });
    return opened;
  }

  test("opens within a second or so, requests nothing and logs no error", async () => {
    const { page, complaints, requests } = await open(pageOf(BROKEN));
    const loadedMs = await page.evaluate(() => {
      const [navigation] = performance.getEntriesByType("navigation");
      return navigation!.duration;
    });
    expect(loadedMs).toBeLessThan(3_000);
    expect(requests).toEqual([]);
    expect(complaints).toEqual([]);
  });

  test("works in the form in which it is built", async () => {
    const url = new URL("../../dist/verify/report/render.js", import.meta.url).href;
    const built = (await import(url)) as { renderReport: typeof renderReport };
    const { page, complaints } = await open(built.renderReport(BROKEN.result, BROKEN.history));
    await page.locator(".checks [data-jump=S1]").click();
    expect((await range(page)).spanMs).toBeLessThan(10_000);
    expect(complaints).toEqual([]);
  });

  test("runs no script that a name contains", async () => {
    const names = [
      "</script><script>alert(1)</script>",
      "<img src=x onerror=alert(2)>",
      "a name without an end ".repeat(20),
      "no-space-in-it-".repeat(20),
    ];
    const verification = busyVerification({ forMs: 6_000, names });
    const { page, complaints, requests } = await open(pageOf(verification), {
      viewport: { width: 400, height: 800 },
    });
    await page.locator("label", { hasText: "Names" }).click();
    await page.locator(".stage").focus();
    await page.keyboard.press("ArrowDown");
    expect(await tipOf(page)).toContain("operation");
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(400);
    expect(complaints).toEqual([]);
    expect(requests).toEqual([]);
  });

  for (const width of [400, 1_280]) {
    test(`fits ${width} px without scrolling sideways`, async () => {
      const { page } = await open(pageOf(BROKEN), { viewport: { width, height: 900 } });
      const wide = (): Promise<number> => page.evaluate(() => document.documentElement.scrollWidth);
      expect(await wide()).toBe(width);
      await page.locator("label", { hasText: "Names" }).click();
      await page.locator(".stage").focus();
      await page.keyboard.press("ArrowDown");
      expect(await wide()).toBe(width);
    });
  }

  test("leads from the row of a broken check to its place", async () => {
    const { page } = await open(pageOf(BROKEN));
    expect((await range(page)).spanMs).toBeGreaterThan(59_000);
    for (const id of ["S4", "S1"]) {
      await page.locator(`.checks [data-jump=${id}]`).click();
      const check = BROKEN.result.checks.find((one) => one.id === id)!;
      const lastMs = check.evidence.at(-1)!.atMs - BROKEN.history[0]!.atMs;
      const { fromMs, toMs, spanMs } = await range(page);
      expect(fromMs).toBeLessThan(lastMs);
      expect(toMs).toBeGreaterThan(lastMs);
      expect(spanMs).toBeLessThan(10_000);
      expect(await page.locator(`.stories [data-jump=${id}]`).getAttribute("aria-pressed")).toBe(
        "true",
      );
    }
    await expect.poll(() => page.evaluate(() => scrollY)).toBeGreaterThan(300);
    const tip = await hoverUntil(page, 0.6, /token/);
    expect(tip).toMatch(/w\d · .*\n[\s\S]*held from \+3\d\.\d+ s/);
  });

  test("shows details, zooms and moves by mouse", async () => {
    const { page } = await open(pageOf(BROKEN));
    expect(await hoverUntil(page, 0.5, /operation/)).toMatch(/requested at \+/);
    const { x, y, width } = await boxOf(page, ".stage");
    const [middleX, middleY] = [x + width / 2, y + 100];

    await page.mouse.move(middleX, middleY);
    await page.keyboard.down("Control");
    await page.mouse.wheel(0, -500);
    await page.keyboard.up("Control");
    const zoomed = await range(page);
    expect(zoomed.spanMs).toBeLessThan(20_000);

    await page.mouse.down();
    await page.mouse.move(middleX - 200, middleY, { steps: 4 });
    await page.mouse.up();
    const dragged = await range(page);
    expect(dragged.fromMs).toBeGreaterThan(zoomed.fromMs);
    expect(dragged.spanMs).toBeCloseTo(zoomed.spanMs, -2);

    const map = await boxOf(page, ".minimap");
    await page.mouse.click(map.x + map.width - 40, map.y + 20);
    expect((await range(page)).toMs).toBeGreaterThan(55_000);

    await page.locator("[data-zoom=in]").click();
    expect((await range(page)).spanMs).toBeLessThan(dragged.spanMs * 0.6);
    await page.locator("[data-zoom=all]").click();
    expect((await range(page)).spanMs).toBeGreaterThan(59_000);

    const scrolledFrom = await page.evaluate(() => scrollY);
    await page.mouse.move(middleX, (await boxOf(page, ".stage")).y + 100);
    await page.mouse.wheel(0, 150);
    await expect.poll(() => page.evaluate(() => scrollY)).not.toBe(scrolledFrom);
    expect((await range(page)).spanMs).toBeGreaterThan(59_000);
  });

  test("does by keyboard all that it does by mouse", async () => {
    const { page } = await open(pageOf(BROKEN));
    await page.locator("input[value=worker]").focus();
    await page.keyboard.press("ArrowRight");
    expect(await page.locator("#time-lines").getAttribute("data-by")).toBe("name");
    await page.locator(".stage").focus();
    for (let i = 0; i < 4; i++) await page.keyboard.press("+");
    const zoomed = await range(page);
    expect(zoomed.spanMs).toBeLessThan(20_000);
    await page.keyboard.press("ArrowRight");
    expect((await range(page)).fromMs).toBeGreaterThan(zoomed.fromMs);
    await page.keyboard.press("ArrowDown");
    const first = await tipOf(page);
    await page.keyboard.press("ArrowDown");
    expect(first).toContain("operation");
    expect(await tipOf(page)).not.toBe(first);
    await page.keyboard.press("Escape");
    expect(await tipOf(page)).toBe("");
    await page.keyboard.press("-");
    await page.keyboard.press("0");
    expect((await range(page)).spanMs).toBeGreaterThan(59_000);
    await page.locator(".checks [data-jump=S1]").focus();
    await page.keyboard.press("Enter");
    expect((await range(page)).spanMs).toBeLessThan(10_000);
  });

  test("taps, moves and pinches by touch", async () => {
    const { page } = await open(pageOf(BROKEN), {
      ...{ viewport: { width: 400, height: 800 }, hasTouch: true, isMobile: true },
    });
    await page.locator(".stories [data-jump=S1]").tap();
    const { x, y, width, height } = await boxOf(page, ".stage");
    let tip = "";
    for (let down = 30; down < height && !tip.includes("token"); down += 5) {
      await page.touchscreen.tap(x + width * 0.6, y + down);
      tip = await tipOf(page);
    }
    expect(tip).toContain("token");

    const before = await range(page);
    const session = await page.context().newCDPSession(page);
    const touch = (type: "touchStart" | "touchMove" | "touchEnd", ...xs: number[]) =>
      session.send("Input.dispatchTouchEvent", {
        type,
        touchPoints: xs.map((at, id) => ({ x: x + at, y: y + 100, id })),
      });
    await touch("touchStart", 150, 250);
    for (let i = 1; i <= 5; i++) await touch("touchMove", 150 - 20 * i, 250 + 20 * i);
    await touch("touchEnd");
    const pinched = await range(page);
    expect(pinched.spanMs).toBeLessThan(before.spanMs * 0.6);

    await touch("touchStart", 250);
    for (let i = 1; i <= 5; i++) await touch("touchMove", 250 - 20 * i);
    await touch("touchEnd");
    const moved = await range(page);
    expect(moved.fromMs).toBeGreaterThan(pinched.fromMs);
    expect(moved.spanMs).toBeCloseTo(pinched.spanMs, -1);
  });

  test("follows the system's light or dark mode, the canvas too", async () => {
    const { page, complaints } = await open(pageOf(BROKEN), { colorScheme: "light" });
    const look = async (): Promise<{ paper: string; picture: string }> => {
      await range(page);
      return page.evaluate(() => ({
        paper: getComputedStyle(document.documentElement).backgroundColor,
        picture: document.querySelector<HTMLCanvasElement>(".lanes")!.toDataURL(),
      }));
    };
    const light = await look();
    await page.emulateMedia({ colorScheme: "dark" });
    expect(light.paper).toBe("rgb(247, 247, 245)");
    expect((await look()).paper).toBe("rgb(14, 16, 19)");
    // The canvas is painted again in a frame of its own.
    await expect.poll(async () => (await look()).picture).not.toBe(light.picture);
    expect(complaints).toEqual([]);
  });

  test("copies the command", async () => {
    const { page } = await open(pageOf(BROKEN), {
      permissions: ["clipboard-write", "clipboard-read"],
    });
    await page.locator("#copy").click();
    await expect.poll(() => page.locator("#copy").textContent()).toBe("Copied");
    expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(BROKEN.result.command);
  });

  test("shows the evidence also without its script", async () => {
    const opened = await openHtml(browser, pageOf(BROKEN), { javaScriptEnabled: false });
    onTestFinished(() => opened.page.context().close());
    const rows = opened.page.locator("#story-S1 tr.evidence");
    const check = BROKEN.result.checks.find(({ id }) => id === "S1")!;
    expect(await rows.count()).toBe(check.evidence.length);
    expect(await opened.page.locator("noscript p").isVisible()).toBe(true);
  });
});
