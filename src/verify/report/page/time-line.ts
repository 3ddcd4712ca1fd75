/// <reference lib="dom" />
import type { PageData } from "./data.js";
import type { Description, Details } from "./details.js";
import type { Gestures } from "./gestures.js";
import type { By, Lanes } from "./lanes.js";
import type { Minimap } from "./minimap.js";
import type { Painter, Picture } from "./painter.js";
import type { Scene } from "./scene.js";
import type { Theme } from "./theme.js";
import type { View } from "./view.js";

/** The classes that a time line uses. It gets them only by this parameter, because its source text must stand alone. */
export interface Parts {
  readonly Details: typeof Details;
  readonly Gestures: typeof Gestures;
  readonly Lanes: typeof Lanes;
  readonly Minimap: typeof Minimap;
  readonly Painter: typeof Painter;
  readonly Scene: typeof Scene;
  readonly Theme: typeof Theme;
  readonly View: typeof View;
}

/** The canvas with its lanes, the minimap, the buttons and the details. */
export class TimeLine {
  readonly #classes: Parts;
  readonly #root: HTMLElement;
  readonly #canvas: HTMLCanvasElement;
  readonly #stage: HTMLElement;
  readonly #tip: HTMLElement;
  readonly #painter;
  readonly #minimap;
  #picture: Picture;
  #widthPx = 0;
  #frame = 0;

  constructor(root: HTMLElement, data: PageData, classes: Parts) {
    this.#classes = classes;
    this.#root = root;
    this.#stage = root.querySelector<HTMLElement>(".stage")!;
    this.#canvas = root.querySelector<HTMLCanvasElement>(".lanes")!;
    this.#tip = root.querySelector<HTMLElement>(".tip")!;
    this.#painter = new classes.Painter(this.#canvas.getContext("2d")!);
    const scene = new classes.Scene(data);
    this.#picture = {
      scene,
      view: new classes.View(data.fromMs, data.toMs),
      lanes: new classes.Lanes(scene, "worker"),
      theme: new classes.Theme(),
      chosen: null,
      labelsAbove: false,
    };
    const map = root.querySelector<HTMLCanvasElement>(".minimap")!;
    this.#minimap = new classes.Minimap(map, (x) => this.#center(x));
    new classes.Gestures(this.#stage, this.#actions());
    this.#listen();
    this.#resize();
    this.#nameStory();
  }

  /** Shows the evidence of a check, numbered. */
  jump(check: string): void {
    const { scene, view } = this.#picture;
    const story = scene.data.stories.find((one) => one.check === check);
    if (story === undefined) return;
    scene.story = story;
    view.show(story.fromMs, story.toMs);
    this.#leave();
    this.#nameStory();
    this.#root.scrollIntoView({ block: "start" });
    this.#stage.focus({ preventScroll: true });
  }

  #actions() {
    const { view } = this.#picture;
    return {
      zoom: (factor: number, x: number): void => {
        view.zoom(factor, view.at(x));
        this.#leave();
      },
      panPx: (byPx: number): void => {
        view.pan(byPx * view.msPerPx);
        this.#leave();
      },
      showAll: (): void => {
        view.show(view.firstMs, view.lastMs);
        this.#leave();
      },
      point: (x: number, y: number): void => {
        this.#describe(new this.#classes.Details(this.#picture).find(x, y), x, y);
      },
      leave: (): void => this.#leave(),
      step: (by: 1 | -1): void => this.#step(by),
    };
  }

  #listen(): void {
    const actions = this.#actions();
    const middle = (): number => {
      const { view } = this.#picture;
      return view.leftPx + view.widthPx / 2;
    };
    const buttons: Record<string, () => void> = {
      in: () => actions.zoom(2, middle()),
      out: () => actions.zoom(0.5, middle()),
      all: () => actions.showAll(),
    };
    for (const button of this.#root.querySelectorAll<HTMLElement>("[data-zoom]")) {
      button.addEventListener("click", () => buttons[button.dataset["zoom"] ?? ""]?.());
    }
    for (const input of this.#root.querySelectorAll<HTMLInputElement>("[name=lanes]")) {
      input.addEventListener("change", () => this.#switch(input.value as By));
    }
    new ResizeObserver(() => this.#resize()).observe(this.#stage);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#picture = { ...this.#picture, theme: new this.#classes.Theme() };
      this.#request();
    });
  }

  #switch(by: By): void {
    const { scene } = this.#picture;
    this.#picture = { ...this.#picture, lanes: new this.#classes.Lanes(scene, by), chosen: null };
    this.#root.dataset["by"] = by;
    this.#resize();
  }

  #resize(): void {
    const { view, lanes } = this.#picture;
    const ratio = window.devicePixelRatio || 1;
    this.#widthPx = this.#stage.clientWidth;
    const labelsAbove = this.#widthPx < 640;
    this.#picture = { ...this.#picture, labelsAbove };
    view.leftPx = labelsAbove ? 0 : 100;
    view.widthPx = Math.max(50, this.#widthPx - view.leftPx - (labelsAbove ? 0 : 14));
    this.#canvas.width = Math.round(this.#widthPx * ratio);
    this.#canvas.height = Math.round(lanes.heightPx * ratio);
    this.#canvas.style.height = `${lanes.heightPx}px`;
    this.#canvas.getContext("2d")!.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#leave();
    this.#paint();
  }

  /** Moves the view to a place of the minimap. */
  #center(x: number): void {
    const { view } = this.#picture;
    const share = (x - view.leftPx) / view.widthPx;
    const middleMs = view.firstMs + share * (view.lastMs - view.firstMs);
    view.pan(middleMs - (view.fromMs + view.toMs) / 2);
    this.#leave();
  }

  /** Chooses the next operation that begins in view, or moves the view to it. */
  #step(by: 1 | -1): void {
    const { scene, view, chosen } = this.#picture;
    const { operations } = scene;
    const isShown = (i: number): boolean => {
      const one = operations[i]!;
      return view.shows(one.askedAtMs, one.holds[0]?.toMs ?? one.waitedUntilMs);
    };
    const first = operations.findIndex((_, i) => isShown(i));
    const next = chosen === null ? Math.max(0, first) : operations.indexOf(chosen) + by;
    const operation = operations[next];
    if (operation === undefined) return;
    const atMs = operation.holds[0]?.fromMs ?? operation.askedAtMs;
    if (!view.shows(atMs, atMs)) view.pan(atMs - (view.fromMs + view.toMs) / 2);
    const details = new this.#classes.Details(this.#picture);
    const { x, y } = details.middle(operation);
    this.#describe(details.ofOperation(operation), x, y);
  }

  #leave(): void {
    this.#describe(null, 0, 0);
  }

  #describe(description: Description | null, x: number, y: number): void {
    this.#picture = { ...this.#picture, chosen: description?.operation ?? null };
    this.#tip.hidden = description === null;
    this.#stage.classList.toggle("pointing", description !== null);
    if (description !== null) {
      const title = document.createElement("strong");
      title.textContent = description.title;
      const lines = description.lines.map((text) => {
        const line = document.createElement("span");
        line.textContent = text;
        return line;
      });
      this.#tip.replaceChildren(title, ...lines);
      const left = Math.min(x + 14, this.#widthPx - this.#tip.offsetWidth);
      this.#tip.style.left = `${Math.max(0, left)}px`;
      const below = y + 16;
      const isLow = below + this.#tip.offsetHeight > this.#stage.clientHeight + 40;
      this.#tip.style.top = `${isLow ? y - this.#tip.offsetHeight - 10 : below}px`;
    }
    this.#request();
  }

  #nameStory(): void {
    const { story } = this.#picture.scene;
    for (const button of this.#root.querySelectorAll<HTMLElement>("[data-jump]")) {
      button.setAttribute("aria-pressed", String(button.dataset["jump"] === story?.check));
    }
  }

  #request(): void {
    if (this.#frame !== 0) return;
    this.#frame = requestAnimationFrame(() => this.#paint());
  }

  #paint(): void {
    this.#frame = 0;
    this.#painter.paint(this.#picture, this.#widthPx);
    this.#minimap.paint(this.#picture);
    const { view } = this.#picture;
    const range = this.#root.querySelector(".range");
    const details = new this.#classes.Details(this.#picture);
    const span = `${details.time(view.fromMs)} to ${details.time(view.toMs)}`;
    if (range !== null) {
      range.textContent = `${span} (${details.duration(view.toMs - view.fromMs)})`;
    }
  }
}
