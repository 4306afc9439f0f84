// One chart: plotly draws it, the cursor and its readout are ours, since they are shared by all charts.

import { byId, h, replace } from "./dom.js";
import { number, percent } from "./format.js";
import { ink } from "./palette.js";
import { placeOf } from "./series.js";
import { hasNumbers, tracesOf } from "./traces.js";
import { isExported } from "./api.js";

let loading = null;

/** plotly's script, loaded when the first chart is seen. */
export function plotly() {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  if (isExported) return Promise.reject(new Error("plotly is not in this file"));
  loading ||= new Promise((done, failed) => {
    const script = h("script", { src: "/static/plotly.min.js" });
    script.onload = () => done(window.Plotly);
    script.onerror = () => failed(new Error("plotly's script can't be loaded"));
    document.head.append(script);
  });
  return loading;
}

/** A chart of a panel. `shared` is told where the cursor is, which steps are zoomed to, which step was chosen. */
export class Chart {
  constructor(panel, shared) {
    this.panel = panel;
    this.shared = shared;
    this.lines = [];
    this.isSeen = false;
    this.cursor = h("div", { class: "cursor", hidden: true });
    this.plot = h("div", { class: "plot" });
    this.readout = h("div", { class: "readout" });
    this.caption = h("p", { class: "unseen" });
    this.field = h("div", { class: "field", tabindex: "0", role: "group", "aria-label": `${panel.title}: arrow keys move the cursor, Enter opens the step` }, this.plot, this.cursor);
    this.element = h("figure", { class: "chart", "data-panel": panel.id }, this.header(), this.field, this.caption);
    this.listen();
  }

  header() {
    const info = h("button", { type: "button", class: "info", "aria-label": `About ${this.panel.title}`, onclick: () => explain(this.panel, this.keys || []) }, "i");
    return h("figcaption", {}, h("h3", {}, this.panel.title), info, this.readout);
  }

  /** Shows these runs; draws only when the chart is in view. */
  show(runs, options) {
    this.runs = runs;
    this.options = options;
    this.isStale = true;
    if (this.isSeen) this.draw();
  }

  /** The chart came into view. */
  seen() {
    this.isSeen = true;
    if (this.isStale && this.runs) this.draw();
  }

  async draw() {
    this.isStale = false;
    const { traces, lines } = tracesOf(this.panel, this.runs, this.options);
    this.lines = lines;
    this.keys = [...new Set(lines.map((line) => line.name))];
    this.say(null);
    this.caption.textContent = lines.map(told).join(". ");
    const Plotly = await plotly();
    if (!this.element.isConnected) return;
    await Plotly.react(this.plot, traces, this.layout(), { displayModeBar: false, doubleClick: false, responsive: false, scrollZoom: false });
    if (!this.isWired) this.wire();
  }

  layout() {
    const { low, high } = this.options;
    const room = 0.012 * (high - low);
    const width = this.field.clientWidth, height = this.field.clientHeight;
    const axis = { gridcolor: ink("grid"), zerolinecolor: ink("grid"), linecolor: ink("line"), tickfont: { size: 11, color: ink("muted") }, fixedrange: false, automargin: false };
    const values = this.lines.flatMap((line) => line.values).filter((value) => value !== null);
    const canLog = this.panel.log && values.length && values.some((value) => value > 0);
    const canScale = !this.panel.share || values.some((value) => value !== 0);
    const flat = canScale && !this.panel.range && !canLog && !this.panel.stack ? around(values) : null;
    return {
      width, height, margin: { l: 46, r: 10, t: 6, b: 22 }, showlegend: false, hovermode: false, dragmode: "zoom",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: ink("muted") },
      xaxis: { ...axis, range: [low - room, high + room], showgrid: false, nticks: 6, dtick: high - low <= 6 ? 1 : undefined, tickformat: "d" },
      yaxis: { ...axis, fixedrange: true, nticks: 5, zeroline: false, type: canLog ? "log" : "linear", exponentformat: "e", tickformat: this.panel.share ? ",.3~%" : undefined, dtick: canLog ? (decades(values) > 1.5 ? 1 : "D2") : undefined, range: this.panel.range ? padded(this.panel.range) : canScale ? flat || undefined : [0, 0.05], autorange: !this.panel.range && canScale && !flat, rangemode: this.panel.stack ? "tozero" : "normal" },
    };
  }

  wire() {
    this.isWired = true;
    this.plot.on("plotly_relayout", (change) => {
      const low = change["xaxis.range[0]"], high = change["xaxis.range[1]"];
      if (low !== undefined && high !== undefined) this.shared.zoom(Math.round(low), Math.round(high));
    });
  }

  listen() {
    const field = this.field;
    let pressed = null;
    field.addEventListener("pointermove", (event) => this.shared.move(this.stepAt(event)));
    field.addEventListener("pointerleave", () => this.shared.move(null));
    field.addEventListener("pointerdown", (event) => (pressed = event.clientX), true);
    window.addEventListener("pointerup", (event) => {
      if (pressed !== null && Math.abs(event.clientX - pressed) < 4 && event.button === 0) {
        const step = this.stepAt(event);
        if (step !== null) this.shared.choose(step);
      }
      pressed = null;
    });
    field.addEventListener("dblclick", () => this.shared.zoom(null, null));
    field.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move) this.shared.nudge(move);
      else if (event.key === "Enter") this.shared.choose(null);
      else if (event.key === "Escape") this.shared.move(null);
      else return;
      event.preventDefault();
    });
  }

  stepAt(event) {
    const axis = this.plot._fullLayout && this.plot._fullLayout.xaxis;
    if (!axis) return null;
    const at = event.clientX - this.plot.getBoundingClientRect().left - axis._offset;
    return at < -4 || at > axis._length + 4 ? null : Math.max(this.options.low, Math.min(this.options.high, axis.p2d(at)));
  }

  /** Puts the cursor at a step, or takes it away. */
  point(step) {
    const axis = this.plot._fullLayout && this.plot._fullLayout.xaxis;
    const isShown = step !== null && axis && step >= this.options.low && step <= this.options.high;
    this.cursor.hidden = !isShown;
    if (isShown) this.cursor.style.transform = `translateX(${axis._offset + axis.d2p(step)}px)`;
    this.say(step);
  }

  /** The values at a step; without one, the last there are. */
  say(step) {
    const shown = this.lines.slice(0, 8).map((line) => {
      const value = step === null ? last(line) : valueAt(line, step);
      const label = this.lines.length > 1 || this.runs.length > 1 ? [h("span", { class: "sign", var: { color: line.color } }, line.sign), ` ${line.name} `] : [];
      return h("span", { class: "value" }, label, h("b", {}, this.panel.share ? percent(value) : number(value)), this.panel.unit ? ` ${this.panel.unit}` : null);
    });
    replace(this.readout, shown);
  }

  resize() {
    if (this.isWired && window.Plotly) window.Plotly.relayout(this.plot, { width: this.field.clientWidth, height: this.field.clientHeight });
  }

  leave() {
    if (this.isWired && window.Plotly) window.Plotly.purge(this.plot);
    this.isWired = false;
    this.element.remove();
  }

  /** There is something to show. */
  static suits(panel, runs) {
    return hasNumbers(panel, runs);
  }
}

/** For values that are all the same, a range with 0 in it: plotly would draw a small one as 0. */
function around(values) {
  const value = values[0];
  return values.length && value !== 0 && values.every((other) => other === value) ? [Math.min(0, 2 * value), Math.max(0, 2 * value)] : null;
}

/** Powers of ten between the least and the greatest of these values. */
function decades(values) {
  const there = values.filter((value) => value > 0);
  return Math.log10(Math.max(...there) / Math.min(...there));
}

function padded([low, high]) {
  const room = 0.04 * (high - low);
  return [low - room, high + room];
}

function last(line) {
  for (let at = line.values.length - 1; at >= 0; at--) if (line.values[at] !== null) return line.values[at];
  return null;
}

function valueAt(line, step) {
  const at = placeOf(line.steps, step + 0.5);
  return at < 0 ? null : line.values[at];
}

function told(line) {
  const first = line.values.findIndex((value) => value !== null);
  if (first < 0) return `${line.name}: no numbers`;
  return `${line.name}: ${number(line.values[first])} at step ${line.steps[first]}, ${number(last(line))} at the end`;
}

function explain(panel, names) {
  const keys = [...(panel.lines || panel.stack), ...(panel.spread ? [panel.spread] : []), ...(panel.band || [])];
  const dialog = byId("dialog");
  replace(
    dialog,
    h("h2", { id: "dialog-title" }, panel.title),
    h("dl", { class: "about" },
      h("dt", {}, "How it is computed"), h("dd", {}, panel.formula),
      panel.healthy ? [h("dt", {}, "Healthy"), h("dd", {}, panel.healthy)] : null,
      h("dt", {}, keys.length > 1 ? "Raw keys" : "Raw key"), h("dd", {}, keys.map((key) => h("code", {}, key))),
      names.length > 1 ? [h("dt", {}, "Lines"), h("dd", {}, names.join(", "))] : null),
    h("form", { method: "dialog" }, h("button", {}, "Close")),
  );
  dialog.showModal();
}
