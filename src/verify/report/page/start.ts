/// <reference lib="dom" />
import type { PageData } from "./data.js";
import type { Parts, TimeLine } from "./time-line.js";

/** The classes of the page. */
export interface Classes extends Parts {
  readonly TimeLine: typeof TimeLine;
}

/** Runs in the browser when the page is loaded. */
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
    // A page that was opened by plain http may not write to the clipboard, so the text is selected
    // for the reader to copy.
    const select = (): void => getSelection()?.selectAllChildren(command!);
    if (navigator.clipboard === undefined) select();
    else void navigator.clipboard.writeText(command!.textContent!).then(done, select);
  });
  document.documentElement.dataset["ready"] = "yes";
}
