// A panel and some runs' columns as shapes to draw.

import { faint, look, PATTERNS } from "./palette.js";
import { keysOf, nameOf } from "./panels.js";
import { smoothed, thinned } from "./series.js";

/** Shapes, and for the readout the lines behind them: `{ name, sign, color, steps, values }`. */
export function shapesOf(panel, runs, options) {
  if (runs.length > 1) return compared(panel, runs, options);
  const { columns } = runs[0];
  return panel.stack ? stacked(panel, columns, options) : lined(panel, columns, options);
}

/** The panel has something to show of these runs. */
export function hasNumbers(panel, runs) {
  const patterns = runs.length > 1 && panel.compare ? [panel.compare] : panel.lines || panel.stack;
  return runs.some((run) => keysOf(patterns, run.columns).length >= (panel.atLeast || 1));
}

function compared(panel, runs, options) {
  const shapes = [], lines = [];
  runs.forEach((run) => {
    const keys = keysOf(panel.compare ? [panel.compare] : panel.lines, run.columns);
    keys.forEach((key, place) => {
      const style = look(run.place);
      const name = keys.length > 1 ? `${run.name} ${nameOf(panel, key)}` : run.name;
      add(shapes, lines, { name, key, style, columns: run.columns, width: place ? 1 : 1.8, panel, options });
    });
  });
  return { shapes, lines };
}

function lined(panel, columns, options) {
  const shapes = [], lines = [];
  keysOf(panel.lines, columns).forEach((key, place) => {
    const style = look(place);
    if (place === 0 && !panel.points) band(shapes, panel, key, columns, style, options);
    add(shapes, lines, { name: nameOf(panel, key), key, style, columns, width: 1.8, panel, options });
  });
  return { shapes, lines };
}

function add(shapes, lines, { name, key, style, columns, width, panel, options }) {
  const values = smoothed(columns[key], panel.points ? 1 : options.smooth);
  if (options.smooth > 1 && !panel.points) shapes.push(line(columns.step, columns[key], { color: faint(style.color, 0.28), width: 1 }, options));
  if (panel.points) measured(shapes, values, panel, columns, { color: style.color, width, dash: style.dash });
  else shapes.push(line(columns.step, values, { color: style.color, width, dash: style.dash, hasDots: columns.step.length < 3 }, options));
  lines.push({ name, sign: style.sign, color: style.color, steps: columns.step, values });
}

function line(steps, values, style, options) {
  const places = thinned(steps, values, options.low, options.high);
  return { kind: "line", x: places.map((at) => steps[at]), y: places.map((at) => values[at]), ...style };
}

/** Numbers of some steps only: joined over those between, each with its interval. */
function measured(shapes, values, panel, columns, style) {
  const there = values.map((_, at) => at).filter((at) => values[at] !== null);
  const x = there.map((at) => columns.step[at]);
  if (panel.band && columns[panel.band[0]]) {
    const [low, high] = panel.band.map((key) => there.map((at) => columns[key][at]));
    shapes.push({ kind: "bars", x, low, high, color: style.color });
  }
  shapes.push({ kind: "line", x, y: there.map((at) => values[at]), hasDots: true, ...style });
}

/** The band around a line. */
function band(shapes, panel, key, columns, style, options) {
  const middle = columns[key];
  let low, high;
  if (panel.spread && columns[panel.spread]) {
    const spread = columns[panel.spread];
    low = middle.map((value, at) => (value === null || spread[at] === null ? null : value - spread[at]));
    high = middle.map((value, at) => (value === null || spread[at] === null ? null : value + spread[at]));
  } else if (panel.band && columns[panel.band[0]]) {
    [low, high] = panel.band.map((name) => columns[name]);
  } else return;
  const places = thinned(columns.step, high, options.low, options.high);
  shapes.push({ kind: "area", x: places.map((at) => columns.step[at]), low: places.map((at) => low[at]), high: places.map((at) => high[at]), fill: faint(style.color, 0.14) });
}

function stacked(panel, columns, options) {
  const keys = keysOf(panel.stack, columns);
  const shapes = [], lines = [];
  const total = columns.step.map((_, at) => keys.reduce((sum, key) => sum + (columns[key][at] || 0), 0));
  // A step where none of the layers has a number is a gap; where only some have, the others are nothing there.
  const isThere = columns.step.map((_, at) => keys.some((key) => columns[key][at] !== null));
  const places = thinned(columns.step, total, options.low, options.high);
  let below = places.map((at) => (isThere[at] ? 0 : null));
  keys.forEach((key, place) => {
    const style = look(place), low = below;
    below = places.map((at, spot) => (isThere[at] ? low[spot] + (columns[key][at] || 0) : null));
    shapes.push({ kind: "area", x: places.map((at) => columns.step[at]), low, high: below, color: style.color, fill: faint(style.color, 0.35), pattern: PATTERNS[place % PATTERNS.length] });
    lines.push({ name: nameOf(panel, key), sign: style.sign, color: style.color, steps: columns.step, values: columns[key] });
  });
  return { shapes, lines };
}
