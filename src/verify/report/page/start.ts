/// <reference lib="dom" />
import type { PageData } from "./data.js";
import type { Details } from "./details.js";
import type { Gestures } from "./gestures.js";
import type { Lanes } from "./lanes.js";
import type { Minimap } from "./minimap.js";
import type { Painter } from "./painter.js";
import type { Scene } from "./scene.js";
import type { Theme } from "./theme.js";
import type { TimeLine } from "./time-line.js";
import type { View } from "./view.js";

/** The classes of the page. Each uses the others only through this, so that its source text stands alone. */
export interface Classes {
  readonly Details: typeof Details;
  readonly Gestures: typeof Gestures;
  readonly Lanes: typeof Lanes;
  readonly Minimap: typeof Minimap;
  readonly Painter: typeof Painter;
  readonly Scene: typeof Scene;
  readonly Theme: typeof Theme;
  readonly TimeLine: typeof TimeLine;
  readonly View: typeof View;
}

/** Runs in the browser when the page has been read. */
export function start(classes: Classes): void {
  const data = JSON.parse(document.getElementById("data")!.textContent!) as PageData;
  const timeLine = new classes.TimeLine(document.getElementById("time-lines")!, data, classes);
  for (const link of document.querySelectorAll<HTMLElement>("[data-jump]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      timeLine.jump(link.dataset["jump"]!);
    });
  }
  const copy = document.getElementById("copy");
  const command = document.getElementById("command");
  copy?.addEventListener("click", () => {
    const done = (): void => {
      copy.textContent = "Copied";
      setTimeout(() => {
        copy.textContent = "Copy";
      }, 1_500);
    };
    // A page that was opened by plain http may not write to the clipboard: the reader copies the selection.
    const select = (): void => getSelection()?.selectAllChildren(command!);
    if (navigator.clipboard === undefined) select();
    else void navigator.clipboard.writeText(command!.textContent!).then(done, select);
  });
  document.documentElement.dataset["ready"] = "yes";
}
