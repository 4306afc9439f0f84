// Shapes in the units of the data, drawn on two axes.
//
// A `line` has x and y, an `area` and `bars` x, low and high; null is a gap. Drawn here and not by a library:
// one that draws everything takes a second to start, which is longer than all the rest of a page.

import { replace, svg } from "./dom.js";
import { labelsOf, scaleOf, ticksOf } from "./scale.js";

const MARGIN = { left: 46, right: 10, top: 6, bottom: 22 };
const LETTER = 7;  // pixels that a digit of a label takes, in a wide typeface
const STROKES = { dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4", longdashdot: "11 3 2 3", "5px,2px": "5 2", "2px,6px": "2 6" };
const TILES = { "/": "M-1 7L7 -1", "\\": "M-1 -1L7 7", x: "M-1 7L7 -1M-1 -1L7 7", "-": "M0 3H6", "|": "M3 0V6", "+": "M0 3H6M3 0V6", ".": "M3 3h0.01" };
let numPatterns = 0;

/** Draws the shapes into an element; gives for which width, where its field begins, how wide it is, and its scale of steps. */
export function draw(element, shapes, { width, height, x, y }) {
  const marks = marksOf(y), left = Math.max(MARGIN.left, Math.min(width / 3, 4 + LETTER * Math.max(...marks.map(({ label }) => label.length))));
  const size = { left, width: Math.max(1, width - left - MARGIN.right), height: Math.max(1, height - MARGIN.top - MARGIN.bottom) };
  const across = scaleOf(x, 0, size.width), up = scaleOf(y, size.height, 0);
  const inside = svg("svg", { class: "inside", x: left, y: MARGIN.top, width: size.width, height: size.height }, shapes.map((shape) => drawn(shape, { x: across.place, y: y.isLog ? positive(up.place) : up.place })));
  replace(element, svg("svg", { class: "drawing", width, height, "aria-hidden": "true" }, rows(marks, up, size), columns(x, across, size), inside));
  return { of: width, left, width: size.width, ...across };
}

function positive(place) {
  return (value) => (value > 0 ? place(value) : NaN);
}

function marksOf(axis) {
  const ticks = ticksOf(axis, 4), labels = labelsOf(ticks, axis);
  return ticks.map((value, at) => ({ value, label: labels[at] }));
}

function rows(marks, up, { left, width }) {
  // Of numbers near the largest that there are, no place can be told.
  return marks.filter(({ value }) => Number.isFinite(up.place(value))).map(({ value, label }) => {
    const y = MARGIN.top + up.place(value);
    return [
      svg("path", { class: "grid", d: `M${left} ${fixed(y)}h${width}` }),
      svg("text", { class: "tick", x: left - 6, y: fixed(y + 3.5), "text-anchor": "end" }, label),
    ];
  });
}

function columns(axis, across, size) {
  const room = Math.max(60, LETTER * String(Math.ceil(axis.high)).length + 16);
  const ticks = ticksOf(axis, Math.max(2, Math.floor(size.width / room)));
  const y = MARGIN.top + size.height;
  return [
    svg("path", { class: "edge", d: `M${size.left} ${y + 0.5}h${size.width}` }),
    ticks.map((value) => svg("text", { class: "tick", x: fixed(size.left + across.place(value)), y: y + 15, "text-anchor": across.place(value) > size.width - 14 ? "end" : "middle" }, String(value))),
  ];
}

function drawn(shape, to) {
  switch (shape.kind) {
    case "line": return lineOf(shape, to);
    case "area": return areaOf(shape, to);
    default: return barsOf(shape, to);
  }
}

function lineOf({ x, y, color, width, dash, hasDots }, to) {
  const path = stretches(x.length, (at) => isThere(y[at], to.y)).map((places) => `M${places.map((at) => point(to, x[at], y[at])).join("L")}${places.length > 1 ? "" : "h0"}`).join("");
  const dots = hasDots ? x.map((step, at) => (isThere(y[at], to.y) ? svg("circle", { cx: fixed(to.x(step)), cy: fixed(to.y(y[at])), r: 3, fill: color }) : null)) : null;
  return [svg("path", { class: "line", d: path, stroke: color, "stroke-width": width, "stroke-dasharray": STROKES[dash] }), dots];
}

/** One filled shape for each stretch without gaps; that of a lone step is as wide as a dot. */
function areaOf({ x, low, high, color, fill, pattern }, to) {
  const paths = stretches(x.length, (at) => isThere(low[at], to.y) && isThere(high[at], to.y)).map((places) => {
    const spots = places.length > 1 ? places.map((at) => [to.x(x[at]), at]) : [-3, 3].map((by) => [to.x(x[places[0]]) + by, places[0]]);
    const edge = (side) => spots.map(([across, at]) => `${fixed(across)} ${fixed(to.y(side[at]))}`);
    return `M${[...edge(high), ...edge(low).reverse()].join("L")}Z`;
  });
  const shape = (look) => svg("path", { class: "area", d: paths.join(""), ...look });
  if (!pattern) return shape({ fill, stroke: color, "stroke-width": color ? 0.8 : null });
  const id = `pattern-${++numPatterns}`;
  return [
    svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, svg("path", { class: "tile", d: TILES[pattern], stroke: color })),
    shape({ fill }), shape({ fill: `url(#${id})`, stroke: color, "stroke-width": 0.8 }),
  ];
}

function barsOf({ x, low, high, color }, to) {
  const bars = x.map((step, at) => (isThere(low[at], to.y) && isThere(high[at], to.y) ? barOf(to.x(step), to.y(low[at]), to.y(high[at])) : ""));
  return svg("path", { class: "bars", d: bars.join(""), stroke: color });
}

function barOf(x, low, high) {
  return `M${fixed(x)} ${fixed(low)}V${fixed(high)}M${fixed(x - 3)} ${fixed(low)}h6M${fixed(x - 3)} ${fixed(high)}h6`;
}

function isThere(value, place) {
  return value !== null && value !== undefined && Number.isFinite(place(value));
}

/** The places that are there, cut at those that aren't. */
function stretches(length, there) {
  const found = [];
  let open = null;
  for (let at = 0; at < length; at++) {
    if (!there(at)) open = null;
    else if (open) open.push(at);
    else found.push((open = [at]));
  }
  return found;
}

function point(to, x, y) {
  return `${fixed(to.x(x))} ${fixed(to.y(y))}`;
}

function fixed(value) {
  return Math.round(10 * value) / 10;
}
