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
 * The script of the page: the source text of these classes, as the compiler left it. A class may
 * use no import of its module but types, and no constant beside it: neither is in its text.
 */
export const SCRIPT = `"use strict";
(${String(start)})({
${Object.entries(CLASSES)
  .map(([name, source]) => `${name}: ${source}`)
  .join(",\n")}
});
`;
