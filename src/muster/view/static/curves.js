// The curves of one run, or of several on the same axes, under one cursor.

import { Chart } from "./chart.js";
import { byId, h, pausing, replace, speak } from "./dom.js";
import { isDark, look } from "./palette.js";
import { otherKeys, panelFor, PANELS } from "./panels.js";
import { columnsOf, nearest } from "./series.js";
import { go, shownRuns, state } from "./state.js";

const WINDOWS = [1, 5, 20, 100];

export class CurvesView {
  constructor(container, book) {
    this.book = book;
    this.charts = new Map();
    this.step = null;
    this.tools = h("div", { class: "tools" });
    this.grid = h("div", { class: "charts" });
    this.missing = h("p", { class: "note" });
    replace(container, h("h2", { class: "unseen" }, "Curves"), this.tools, this.grid, this.missing);
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) this.chartOf(entry.target)?.seen();
    }, { root: byId("main"), rootMargin: "200px" });
    this.sized = new ResizeObserver(pausing(120, () => this.charts.forEach((chart) => chart.resize())));
    this.sized.observe(this.grid);
    this.shared = {
      move: (step) => this.move(step),
      nudge: (by) => this.nudge(by),
      zoom: (low, high) => go({ from: low, to: high }, true),
      choose: (step) => this.choose(step),
    };
  }

  chartOf(element) {
    return [...this.charts.values()].find((chart) => chart.element === element);
  }

  /** Draws what the state and the numbers are now. */
  update() {
    const runs = shownRuns().map((id, place) => ({ id, place, name: this.book.nameOf(id), columns: columnsOf(id) })).filter((run) => run.columns.step);
    const steps = runs.flatMap((run) => [run.columns.step[0], run.columns.step[run.columns.step.length - 1]]);
    const first = Math.min(...steps), end = Math.max(...steps);
    const low = boundOf(state().from, first), high = boundOf(state().to, end);
    const isZoomed = low !== first || high !== end;
    const options = { smooth: Number(state().smooth) || 1, low, high: high > low ? high : low + 1, isZoomed };
    const panels = runs.length ? [...PANELS.filter((panel) => Chart.suits(panel, runs)), ...this.added(runs)] : [];
    this.place(panels);
    for (const panel of panels) this.charts.get(panel.id).show(runs, options);
    this.runs = runs;
    this.options = options;
    this.fillTools(runs, low, high, end);
    const lacking = runs.length ? PANELS.filter((panel) => !panel.atLeast && !Chart.suits(panel, runs)).map((panel) => panel.title) : [];
    replace(this.missing, runs.length === 0 ? "No step was written yet. The curves appear with the first." : lacking.length ? `Not recorded ${runs.length > 1 ? "in these runs" : "in this run"}: ${lacking.join(", ")}.` : null);
  }

  added(runs) {
    const chosen = state().more.split("|").filter(Boolean);
    return chosen.map(panelFor).filter((panel) => Chart.suits(panel, runs));
  }

  place(panels) {
    const wanted = new Set(panels.map((panel) => panel.id));
    for (const [id, chart] of this.charts) {
      if (wanted.has(id)) continue;
      this.seen.unobserve(chart.element);
      chart.leave();
      this.charts.delete(id);
    }
    panels.forEach((panel, place) => {
      if (!this.charts.has(panel.id)) {
        const chart = new Chart(panel, this.shared);
        this.charts.set(panel.id, chart);
        this.grid.insertBefore(chart.element, this.grid.children[place] || null);
        this.seen.observe(chart.element);
      }
    });
  }

  fillTools(runs, low, high, end) {
    const keys = [...new Set(runs.flatMap((run) => otherKeys(run.columns)))];
    const key = JSON.stringify([runs.map((run) => run.id), low, high, end, keys.length, state().smooth, state().more, isDark()]);
    if (key === this.toolsKey) return;
    this.toolsKey = key;
    replace(
      this.tools,
      runs.length > 1 ? h("ul", { class: "legend", "aria-label": "Runs" }, runs.map((run) => {
        const style = look(run.place);
        return h("li", {}, h("span", { class: `swatch ${style.dash}`, var: { "--c": style.color } }), h("span", { var: { color: style.color }, "aria-hidden": "true" }, style.sign), ` ${run.name}`);
      })) : null,
      h("label", {}, "Smooth ", h("select", { onchange: (event) => go({ smooth: event.target.value }, true) },
        WINDOWS.map((window) => h("option", { value: window, selected: String(window) === state().smooth }, window === 1 ? "off" : `${window} steps`)))),
      keys.length ? h("label", {}, "Also ", h("select", { onchange: (event) => this.toggle(event.target.value) },
        h("option", { value: "" }, "another metric\u2026"),
        keys.map((name) => h("option", { value: name }, `${state().more.split("|").includes(name) ? "\u2713 " : ""}${name}`)))) : null,
      this.options.isZoomed ? h("button", { type: "button", onclick: () => go({ from: null, to: null }, true) }, `Steps ${low}\u2013${high}: show all`) : h("span", { class: "hint" }, "Drag to zoom, click to open a step"),
    );
  }

  toggle(key) {
    if (!key) return;
    const chosen = new Set(state().more.split("|").filter(Boolean));
    if (!chosen.delete(key)) chosen.add(key);
    go({ more: [...chosen].join("|") }, true);
  }

  move(step) {
    this.step = step === null ? null : nearest(this.steps(), step);
    for (const chart of this.charts.values()) if (chart.isSeen) chart.point(this.step);
  }

  nudge(by) {
    const { low, high } = this.options;
    const steps = this.steps().filter((step) => step >= low && step <= high);
    if (!steps.length) return;
    const at = this.step === null ? (by > 0 ? -1 : steps.length) : steps.indexOf(this.step);
    const next = steps[Math.max(0, Math.min(steps.length - 1, at + by))];
    this.move(next);
    const chart = this.chartOf(document.activeElement?.closest("figure"));
    speak(`step ${next}: ${chart ? chart.readout.textContent : ""}`);
  }

  steps() {
    return this.runs?.[0]?.columns.step || [];
  }

  choose(step) {
    const wanted = step ?? this.step;
    const there = this.book.info(state().run)?.sample_steps || [];
    const found = wanted === null ? null : nearest(there, wanted);
    if (found !== null) go({ view: "samples", step: found, group: null, held: null });
    else speak("This run has no samples");
  }

  leave() {
    this.seen.disconnect();
    this.sized.disconnect();
    this.charts.forEach((chart) => chart.leave());
    this.charts.clear();
  }
}

/** The step that the address names; without one, or with what is no number, the other. */
function boundOf(text, otherwise) {
  return text === "" || !Number.isFinite(Number(text)) ? otherwise : Number(text);
}
