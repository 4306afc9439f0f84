// A panel and some runs' columns as plotly's traces.

import { faint, look, PATTERNS } from "./palette.js";
import { keysOf, nameOf } from "./panels.js";
import { smoothed, thinned } from "./series.js";

/** Traces, and for the readout the lines behind them: `{ name, sign, color, steps, values }`. */
export function tracesOf(panel, runs, options) {
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
  const traces = [], lines = [];
  runs.forEach((run) => {
    const keys = keysOf(panel.compare ? [panel.compare] : panel.lines, run.columns);
    keys.forEach((key, place) => {
      const style = look(run.place);
      const name = keys.length > 1 ? `${run.name} ${nameOf(panel, key)}` : run.name;
      add(traces, lines, { name, key, style, columns: run.columns, width: place ? 1 : 1.8, panel, options });
      if (panel.points) bars(traces.at(-1), panel, run.columns, style);
    });
  });
  return { traces, lines };
}

function lined(panel, columns, options) {
  const traces = [], lines = [];
  keysOf(panel.lines, columns).forEach((key, place) => {
    const style = look(place);
    if (place === 0) band(traces, panel, key, columns, style, options);
    add(traces, lines, { name: nameOf(panel, key), key, style, columns, width: 1.8, panel, options });
    if (panel.points) bars(traces.at(-1), panel, columns, style);
  });
  return { traces, lines };
}

function add(traces, lines, { name, key, style, columns, width, panel, options }) {
  const values = smoothed(columns[key], panel.points ? 1 : options.smooth);
  if (options.smooth > 1 && !panel.points) traces.push(line(columns.step, columns[key], { color: faint(style.color, 0.28), width: 1 }, options));
  const trace = line(columns.step, values, { color: style.color, width, dash: style.dash }, options);
  if (panel.points) {
    const there = trace.x.map((_, at) => at).filter((at) => trace.y[at] !== null);
    Object.assign(trace, { x: there.map((at) => trace.x[at]), y: there.map((at) => trace.y[at]), mode: "lines+markers", marker: { size: 6, color: style.color } });
  } else if (columns.step.length < 3) trace.mode = "lines+markers";
  traces.push(trace);
  lines.push({ name, sign: style.sign, color: style.color, steps: columns.step, values });
}

function line(steps, values, style, options) {
  const places = thinned(steps, values, options.low, options.high);
  return {
    type: "scatter", mode: "lines", hoverinfo: "skip", connectgaps: false, line: style,
    x: places.map((at) => steps[at]), y: places.map((at) => values[at]),
  };
}

function bars(trace, panel, columns, style) {
  if (!panel.band || !columns[panel.band[0]]) return;
  const at = new Map(columns.step.map((step, place) => [step, place]));
  const [low, high] = panel.band.map((key) => trace.x.map((step) => columns[key][at.get(step)]));
  trace.error_y = {
    type: "data", symmetric: false, color: style.color, thickness: 1, width: 3,
    array: trace.y.map((y, place) => (high[place] === null ? 0 : high[place] - y)),
    arrayminus: trace.y.map((y, place) => (low[place] === null ? 0 : y - low[place])),
  };
}

/** The band around a line: one filled shape for each stretch without gaps. */
function band(traces, panel, key, columns, style, options) {
  const middle = columns[key];
  let low, high;
  if (panel.spread && columns[panel.spread]) {
    const spread = columns[panel.spread];
    low = middle.map((value, at) => (value === null || spread[at] === null ? null : value - spread[at]));
    high = middle.map((value, at) => (value === null || spread[at] === null ? null : value + spread[at]));
  } else if (panel.band && !panel.points && columns[panel.band[0]]) {
    [low, high] = panel.band.map((name) => columns[name]);
  } else return;
  const places = thinned(columns.step, high, options.low, options.high);
  let stretch = [];
  const close = () => {
    if (stretch.length > 1) {
      const back = [...stretch].reverse();
      traces.push({
        type: "scatter", mode: "lines", hoverinfo: "skip", fill: "toself", fillcolor: faint(style.color, 0.14), line: { width: 0 },
        x: [...stretch, ...back].map((at) => columns.step[at]), y: [...stretch.map((at) => high[at]), ...back.map((at) => low[at])],
      });
    }
    stretch = [];
  };
  for (const at of places) {
    if (low[at] === null || high[at] === null) close();
    else stretch.push(at);
  }
  close();
}

function stacked(panel, columns, options) {
  const keys = keysOf(panel.stack, columns);
  const traces = [], lines = [];
  const total = columns.step.map((_, at) => keys.reduce((sum, key) => sum + (columns[key][at] || 0), 0));
  // A step where none of the layers has a number is a gap; where only some have, the others are nothing there.
  const isThere = columns.step.map((_, at) => keys.some((key) => columns[key][at] !== null));
  const places = thinned(columns.step, total, options.low, options.high).filter((at) => isThere[at]);
  keys.forEach((key, place) => {
    const style = look(place);
    traces.push({
      type: "scatter", mode: "lines", hoverinfo: "skip", stackgroup: "all", stackgaps: "infer zero",
      line: { width: 0.8, color: style.color }, fillcolor: faint(style.color, 0.45),
      fillpattern: PATTERNS[place % PATTERNS.length] ? { shape: PATTERNS[place % PATTERNS.length], size: 6, solidity: 0.25, fgcolor: style.color, bgcolor: faint(style.color, 0.22) } : undefined,
      x: places.map((at) => columns.step[at]), y: places.map((at) => columns[key][at] || 0),
    });
    lines.push({ name: nameOf(panel, key), sign: style.sign, color: style.color, steps: columns.step, values: columns[key] });
  });
  return { traces, lines };
}
