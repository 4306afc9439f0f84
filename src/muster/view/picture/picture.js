// A picture: paragraphs, tables and figures from the data in the page.

import { byId, h, replace, speak, svg } from "./dom.js";
import { number } from "./format.js";
import { ink, look, nextTheme, takeTheme } from "./palette.js";

const BAR_HEIGHT = 15;
const SYMBOLS = ["circle", "triangle-up", "square", "diamond", "triangle-down", "star", "cross", "circle-open"];
const picture = JSON.parse(byId("exported").textContent);
const charts = [];

function start() {
  takeTheme();
  document.title = `${picture.title} \u00b7 Muster`;
  byId("where").textContent = `explain ${picture.picture}`;
  byId("theme-button").addEventListener("click", changeTheme);
  replace(byId("main"), h("h1", {}, picture.title), picture.blocks.map(blockOf));
  charts.forEach((draw) => draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let wait = 0;
  window.addEventListener("resize", () => {
    clearTimeout(wait);
    wait = setTimeout(redraw, 120);
  });
}

function changeTheme() {
  speak(`Colours: ${nextTheme()}`);
  redraw();
}

function redraw() {
  charts.forEach((draw) => draw());
}

function blockOf(block) {
  if (block.kind === "text") return h("p", {}, block.text);
  if (block.kind === "table") return tableOf(block);
  return block.kind === "chart" ? chartOf(block) : barsOf(block);
}

function tableOf({ title, columns, rows }) {
  const isText = columns.map((_, at) => rows.every((row) => row[at] === null || typeof row[at] === "string"));
  const kind = (at) => ({ class: isText[at] ? "text" : null });
  const cell = (value) => (typeof value === "string" ? value : number(value));
  return h("section", { class: "block", "aria-label": title }, h("h2", {}, title), h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": title },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map((column, at) => h("th", { scope: "col", ...kind(at) }, column)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value, at) => h("td", kind(at), cell(value)))))))));
}

/** A figure whose lines can be switched off by their keys, each with a dash and a sign of its own. */
function chartOf(chart) {
  const plot = h("div", { class: "plot" });
  const keys = h("div", { class: "keys-of-chart", role: "group", "aria-label": "lines shown" });
  const hidden = new Set();
  const draw = () => {
    replace(keys, chart.curves.map((curve, place) => keyOf(curve, place, hidden, draw)));
    const traces = chart.curves.flatMap((curve, place) => (hidden.has(place) ? [] : [lineOf(curve, place, chart.is_log)]));
    const x = { ...axis(), title: { text: chart.x_label, standoff: 8 }, type: chart.is_log ? "log" : "linear" };
    const y = { ...axis(), title: { text: chart.y_label, standoff: 8 }, type: chart.is_log ? "log" : "linear" };
    Plotly.react(plot, traces, { ...layout(plot), xaxis: x, yaxis: y }, CONFIG);
  };
  charts.push(draw);
  return h("figure", { class: "block", "aria-label": chart.title }, h("h2", {}, chart.title), keys, plot, h("figcaption", { class: "unseen" }, chart.curves.map(told).join(". ")));
}

function keyOf(curve, place, hidden, draw) {
  const style = styleOf(place);
  const stroke = { solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4", longdashdot: "10 3 2 3", "5px,2px": "5 2", "2px,6px": "2 6" }[style.dash];
  const sample = svg("svg", { width: 34, height: 10, "aria-hidden": "true" },
    svg("path", { d: "M0 5H34", stroke: style.color, "stroke-width": 2, "stroke-dasharray": stroke, fill: "none" }));
  const toggle = () => {
    if (!hidden.delete(place)) hidden.add(place);
    draw();
    byKey(curve.name)?.focus();
  };
  return h("button", { type: "button", "aria-pressed": String(!hidden.has(place)), "data-key": curve.name, onclick: toggle }, sample, `${style.sign} ${curve.name}`);
}

/** Colour, dash and sign; past the last colour, they come again with another dash and sign. */
function styleOf(place) {
  const style = place < SYMBOLS.length ? look(place) : { ...look(place + 3), color: look(place).color };
  return { ...style, symbol: SYMBOLS[(place < SYMBOLS.length ? place : place + 3) % SYMBOLS.length] };
}

function byKey(name) {
  return [...document.querySelectorAll("[data-key]")].find((button) => button.dataset.key === name);
}

function lineOf(curve, place, isLog) {
  const style = styleOf(place);
  const few = Math.max(1, Math.floor(curve.x.length / 7));
  return {
    type: "scatter", mode: "lines+markers", name: curve.name, x: curve.x, y: isLog ? curve.y.map((value) => value || null) : curve.y, connectgaps: false,
    line: { color: style.color, dash: style.dash, width: 2 },
    // A sign at every few points: lines stay apart in any colours, and where they are printed without.
    marker: { color: style.color, symbol: style.symbol, size: curve.x.map((_, at) => ((at + place) % few === 0 ? 7 : 0)), line: { width: 0 } },
    hovertemplate: "%{fullData.name}<br>%{x:.6~g}: %{y:.4~g}<extra></extra>",
  };
}

function barsOf(bars) {
  const plot = h("div", { class: "plot tall" });
  const names = Object.keys(bars.series);
  const draw = () => {
    const traces = names.map((name, place) => ({
      type: "bar", orientation: "h", name, y: bars.labels.map((_, at) => at), x: bars.series[name],
      marker: { color: look(place).color, pattern: { shape: ["", "/", "x", "."][place % 4], fillmode: "overlay", fgcolor: ink("sheet"), solidity: 0.25 } },
      hovertemplate: `${name}: %{x:.4~g}<extra></extra>`,
    }));
    const height = 70 + bars.labels.length * (names.length * BAR_HEIGHT + 10);
    const x = { ...axis(), title: { text: bars.value_label, standoff: 8 }, rangemode: "tozero" };
    const y = { ...axis(), autorange: "reversed", tickvals: bars.labels.map((_, at) => at), ticktext: bars.labels.map(escaped), showgrid: false, zeroline: false };
    const legend = { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal" };
    Plotly.react(plot, traces, { ...layout(plot), height, margin: { l: 10, r: 14, t: 34, b: 44 }, xaxis: x, yaxis: y, bargap: 0.25, showlegend: true, legend }, CONFIG);
  };
  charts.push(draw);
  const caption = bars.labels.map((label, at) => `${label}: ${names.map((name) => `${name} ${number(bars.series[name][at])}`).join(", ")}`).join(". ");
  return h("figure", { class: "block", "aria-label": bars.title }, h("h2", {}, bars.title), plot, h("figcaption", { class: "unseen" }, caption));
}

const CONFIG = { displayModeBar: false, responsive: false, doubleClick: "reset" };

function axis() {
  return { gridcolor: ink("grid"), zerolinecolor: ink("line"), linecolor: ink("line"), tickfont: { size: 11, color: ink("muted") }, automargin: true, exponentformat: "e" };
}

function layout(plot) {
  return {
    width: plot.clientWidth, height: plot.clientHeight || undefined, margin: { l: 56, r: 14, t: 8, b: 46 }, showlegend: false, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink("muted") },
    hoverlabel: { bgcolor: ink("sheet"), bordercolor: ink("line"), font: { color: ink("text") } },
  };
}

/** plotly reads some markup in labels; a token's text is none. */
function escaped(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function told(curve) {
  const values = curve.y.filter((value) => value !== null);
  return `${curve.name}: from ${number(values[0])} to ${number(values.at(-1))}, least ${number(Math.min(...values))}, greatest ${number(Math.max(...values))}`;
}

start();
