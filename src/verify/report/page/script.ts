import { Details } from "./details.js";
import { Gestures } from "./gestures.js";
import { Lanes } from "./lanes.js";
import { Minimap } from "./minimap.js";
import { Painter } from "./painter.js";
import { Scene } from "./scene.js";
import { type Classes, start } from "./start.js";
import { Theme } from "./theme.js";
import { TimeLine } from "./time-line.js";
import { View } from "./view.js";

const CLASSES: Classes = {
  Details,
  Gestures,
  Lanes,
  Minimap,
  Painter,
  Scene,
  Theme,
  TimeLine,
  View,
};

/**
 * The script of the page: the compiled source text of these classes. A class may use nothing of its
 * module but types, and not its own name either, because the compiler may rename that.
 */
export const SCRIPT = `"use strict";
(${String(start)})({
${Object.entries(CLASSES)
  .map(([name, source]) => `${name}: ${source}`)
  .join(",\n")}
});
`;
