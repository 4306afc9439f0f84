// One chart: its curves, and the cursor and readout that it shares with the others.

import { draw } from "./drawing.js";
import { byId, h, replace } from "./dom.js";
import { number, percent } from "./format.js";
import { placeOf } from "./series.js";
import { hasNumbers, shapesOf } from "./traces.js";

const MIN_DRAG = 4;
/** Milliseconds in which a second click makes a double one. */
const DOUBLE_CLICK = 300;

/** A chart of a panel. `shared` is told where the cursor is, which steps are zoomed to, which step was chosen. */
export class Chart {
  constructor(panel, shared) {
    this.panel = panel;
    this.shared = shared;
    this.lines = [];
    this.isSeen = false;
    this.step = null;
    this.cursor = h("div", { class: "cursor", hidden: true });
    this.plot = h("div", { class: "plot" });
    this.readout = h("div", { class: "readout" });
    this.caption = h("p", { class: "unseen" });
    this.dragged = h("div", { class: "dragged", hidden: true });
    this.field = h("div", { class: "field", tabindex: "0", role: "group", "aria-label": `${panel.title}: arrow keys move the cursor, Enter opens the step` }, this.plot, this.dragged, this.cursor);
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

  draw() {
    this.isStale = false;
    const { shapes, lines } = shapesOf(this.panel, this.runs, this.options);
    this.lines = lines;
    this.keys = [...new Set(lines.map((line) => line.name))];
    this.caption.textContent = lines.map(told).join(". ");
    const { low, high } = this.options;
    const room = 0.012 * (high - low);
    const x = { low: low - room, high: high + room, isWhole: true };
    this.axis = draw(this.plot, shapes, { width: this.field.clientWidth, height: this.field.clientHeight, x, y: heightOf(this.panel, shapes, this.options) });
    this.point(this.step);
  }

  listen() {
    const field = this.field;
    let pressed = null;
    field.addEventListener("pointermove", (event) => {
      this.shared.move(this.stepAt(event));
      this.mark(pressed, event.clientX);
    });
    field.addEventListener("pointerleave", () => this.shared.move(null));
    field.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      pressed = event.clientX;
      field.setPointerCapture(event.pointerId);
    });
    field.addEventListener("pointercancel", () => this.mark((pressed = null), 0));
    field.addEventListener("pointerup", (event) => {
      const from = pressed;
      this.mark((pressed = null), 0);
      if (from !== null) this.released(from, event.clientX);
    });
    field.addEventListener("dblclick", () => {
      clearTimeout(this.choosing);
      this.shared.zoom(null, null);
    });
    field.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move) this.shared.nudge(move);
      else if (event.key === "Enter") this.shared.choose(null);
      else if (event.key === "Escape") this.shared.move(null);
      else return;
      event.preventDefault();
    });
  }

  /** Shows the stretch of steps that is dragged over, from one place on the screen to another. */
  mark(from, to) {
    const isDragged = from !== null && Math.abs(to - from) >= MIN_DRAG;
    this.dragged.hidden = !isDragged;
    if (!isDragged) return;
    const [low, high] = [from, to].sort((a, b) => a - b).map((at) => at - this.plot.getBoundingClientRect().left);
    this.dragged.style.left = `${low}px`;
    this.dragged.style.width = `${high - low}px`;
  }

  /** A click chooses a step, a drag a stretch of them. */
  released(from, to) {
    if (!this.axis) return;
    const [low, high] = [from, to].sort((a, b) => a - b).map((at) => this.within(at));
    if (to - from >= MIN_DRAG || from - to >= MIN_DRAG) this.shared.zoom(Math.round(low), Math.round(high));
    else if (this.stepAt({ clientX: to }) !== null) this.choose(low);
  }

  /** Opens a step; where a double click would undo the zoom, once it is clear that this is none. */
  choose(step) {
    clearTimeout(this.choosing);
    if (this.options.isZoomed) this.choosing = setTimeout(() => this.shared.choose(step), DOUBLE_CLICK);
    else this.shared.choose(step);
  }

  /** The step under a place on the screen; null beside the field. */
  stepAt({ clientX }) {
    const at = this.axis && clientX - this.plot.getBoundingClientRect().left - this.axis.left;
    return at === undefined || at < -4 || at > this.axis.width + 4 ? null : this.within(clientX);
  }

  within(clientX) {
    const step = this.axis.value(clientX - this.plot.getBoundingClientRect().left - this.axis.left);
    return Math.max(this.options.low, Math.min(this.options.high, step));
  }

  /** Puts the cursor at a step, or takes it away. */
  point(step) {
    this.step = step;
    const axis = this.axis;
    const isShown = step !== null && axis && step >= this.options.low && step <= this.options.high;
    this.cursor.hidden = !isShown;
    if (isShown) this.cursor.style.transform = `translateX(${axis.left + axis.place(step)}px)`;
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
    if (this.axis && this.axis.of !== this.field.clientWidth) this.draw();
  }

  leave() {
    clearTimeout(this.choosing);
    this.element.remove();
  }

  /** There is something to show. */
  static suits(panel, runs) {
    return hasNumbers(panel, runs);
  }
}

/** The axis of values: the panel's own, or one that holds what is drawn. */
function heightOf(panel, shapes, { low, high }) {
  const isShare = panel.share === true;
  if (panel.range) return { ...padded(...panel.range), isShare };
  const inside = valuesOf(shapes, (step) => step >= low && step <= high);
  // Between two steps nothing is written, and only the lines from one to the other are seen.
  const values = inside.length ? inside : valuesOf(shapes, () => true);
  const isLog = Boolean(panel.log) && values.some((value) => value > 0);
  const [least, most] = endsOf(isLog ? values.filter((value) => value > 0) : values);
  // What differs in the last bits alone is one number.
  const isFlat = most - least <= 1e-9 * Math.max(Math.abs(least), Math.abs(most));
  if (isLog) return isFlat ? { low: least / 2, high: 2 * most, isLog } : { low: least / (most / least) ** 0.05, high: most * (most / least) ** 0.05, isLog };
  // Values that are all the same have 0 in view: a small one would seem to be nothing.
  if (isFlat) return { low: Math.min(0, 2 * least), high: most === 0 ? (isShare ? 0.05 : 1) : Math.max(0, 2 * most), isShare };
  return panel.stack ? { low: Math.min(0, 1.04 * least), high: Math.max(0, 1.04 * most), isShare } : { ...padded(least, most), isShare };
}

function valuesOf(shapes, isIn) {
  return shapes.flatMap((shape) => [shape.y, shape.low, shape.high].flatMap((column) => (column || []).filter((value, at) => value !== null && isIn(shape.x[at]))));
}

/** The least and the greatest; 0 twice where there is nothing. */
function endsOf(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) (low = Math.min(low, value)), (high = Math.max(high, value));
  return low <= high ? [low, high] : [0, 0];
}

function padded(low, high) {
  const room = 0.05 * (high - low);
  return { low: low - room, high: high + room };
}

function last(line) {
  for (let at = line.values.length - 1; at >= 0; at--) if (line.values[at] !== null) return line.values[at];
  return null;
}

/** The value at a step, or at the one before it; none after the last. */
function valueAt({ steps, values }, step) {
  const at = placeOf(steps, step + 0.5);
  return at < 0 || step > steps[steps.length - 1] ? null : values[at];
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
