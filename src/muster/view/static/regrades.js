// A run's rollouts under other rewards or recipes, as `muster regrade` left them in its folder.

import { ask } from "./api.js";
import { Chart } from "./chart.js";
import { h, pausing, replace } from "./dom.js";
import { number, percent, plural, signed } from "./format.js";
import { isDark } from "./palette.js";
import { nearest } from "./series.js";
import { go, link, state } from "./state.js";

const PANELS = [
  {
    id: "regrade-score", title: "Mean score", lines: ["before/score", "after/score"], names: { "before/score": "before", "after/score": "after" },
    formula: "Mean score of the step\u2019s rollouts, as recorded and as regraded.", healthy: "",
  },
  {
    id: "regrade-mixed", title: "Groups mixed", lines: ["before/mixed", "after/mixed"], names: { "before/mixed": "before", "after/mixed": "after" },
    formula: "Groups of the step whose scores differ: only those have a gradient.", healthy: "",
  },
  {
    id: "regrade-cosine", title: "Agreement of coefficients", lines: ["cosine", "same_sign"], names: { same_sign: "same sign" },
    formula: "A token\u2019s coefficient is what multiplies the gradient of its log-probability in the loss, weights included. Cosine of the angle between all coefficients before and after, and share of the tokens that are pushed the same way.",
    healthy: "1: both would take the same step, up to its length. 0: they have nothing in common. Below 0: they pull apart.",
  },
  {
    id: "regrade-norm", title: "Norm after / before", lines: ["relative_norm"], names: { relative_norm: "ratio" },
    formula: "Norm of the coefficients after over their norm before: what the learning rate would have to make up for.", healthy: "",
  },
];
const ROWS = [
  ["Mean score", "score", number], ["Rollouts with a score", "scored", number], ["A reward failed", "failed", number],
  ["No reward judged", "abstained", number], ["Groups mixed", "mixed", number], ["Clipped low", "clip_low", percent], ["Clipped high", "clip_high", percent],
];

export class RegradesView {
  constructor(container, book) {
    this.book = book;
    this.charts = [];
    this.turn = 0;
    this.head = h("div");
    this.grid = h("div", { class: "charts" });
    this.rest = h("div");
    replace(container, h("h2", { class: "unseen" }, "Regrades"), this.head, this.grid, this.rest);
    this.sized = new ResizeObserver(pausing(120, () => this.charts.forEach((chart) => chart.resize())));
    this.sized.observe(this.grid);
    this.shared = { move: (step) => this.move(step), nudge: (by) => this.nudge(by), zoom: () => {}, choose: (step) => this.choose(step) };
  }

  /** Shows the regrade that the state names, or the first there is. */
  async update(info) {
    this.info = info;
    const turn = ++this.turn;
    let regrades = [], chosen = null;
    try {
      ({ regrades } = await ask(`/api/runs/${info.id}/regrades`));
      if (turn !== this.turn) return;
      chosen = regrades.find((one) => one.id === state().regrade) || regrades[0];
      if (!chosen) return this.empty();
      const found = await ask(`/api/runs/${info.id}/regrades/${chosen.id}`);
      if (turn === this.turn) this.show(regrades, found);
    } catch (error) {
      if (turn === this.turn) this.fail(regrades, chosen, error);
    }
  }

  /** Says why there is nothing to show; another regrade can still be chosen. */
  fail(regrades, chosen, error) {
    this.clear();
    replace(this.head, chosen ? this.tools(regrades, chosen) : null, h("p", { class: "problem", role: "alert" }, error.message));
  }

  clear() {
    this.charts.forEach((chart) => chart.leave());
    this.charts = [];
    this.key = "";
    replace(this.rest);
  }

  empty() {
    this.clear();
    const how = `muster regrade ${this.info.name} --recipe dr_grpo\nmuster regrade ${this.info.name} --reward grade.py:reward`;
    replace(this.head, h("section", { class: "welcome" }, h("h3", {}, "No regrade of this run yet"), h("p", {}, "Its stored rollouts can be put under another reward or recipe without sampling again. What comes of it is shown here:"), h("pre", {}, how)));
  }

  show(regrades, found) {
    replace(this.head, this.tools(regrades, found), settings(found), h("p", {}, verdict(found)), h("div", { class: "regrade-sums" }, sides(found), agreement(found)));
    replace(this.rest, limits(found), changed(found, this.info));
    const key = [found.id, found.made, isDark()].join(" ");
    if (key !== this.key) this.draw(found);
    this.key = key;
  }

  tools(regrades, found) {
    return h("div", { class: "tools" }, h("label", {}, "Regrade ", h("select", { id: "regrade-field", onchange: (event) => go({ regrade: event.target.value }) },
      regrades.map((one) => h("option", { value: one.id, selected: one.id === found.id }, one.name)))), h("span", { class: "note" }, found.made ? `made ${found.made.slice(0, 16).replace("T", " ")} UTC` : null));
  }

  draw({ columns }) {
    this.charts.forEach((chart) => chart.leave());
    this.charts = [];
    this.steps = columns.step || [];
    if (this.steps.length < 2) return;
    const runs = [{ id: this.info.id, place: 0, name: this.info.name, columns }];
    const options = { smooth: 1, low: this.steps[0], high: this.steps[this.steps.length - 1] };
    for (const panel of PANELS.filter((one) => Chart.suits(one, runs))) {
      const chart = new Chart(panel, this.shared);
      this.charts.push(chart);
      this.grid.append(chart.element);
      chart.show(runs, options);
      chart.seen();
    }
  }

  move(step) {
    this.step = step === null ? null : nearest(this.steps, step);
    this.charts.forEach((chart) => chart.point(this.step));
  }

  nudge(by) {
    const at = this.step === null || this.step === undefined ? (by > 0 ? -1 : this.steps.length) : this.steps.indexOf(this.step);
    this.move(this.steps[Math.max(0, Math.min(this.steps.length - 1, at + by))]);
  }

  choose(step) {
    const found = nearest(this.steps, step ?? this.step ?? this.steps[0]);
    if (found !== null) go(place({ step: found }, this.key));
  }

  leave() {
    this.turn++;
    this.sized.disconnect();
    this.charts.forEach((chart) => chart.leave());
  }
}

/** The samples of a step, with the regrade kept in the address. */
function place({ step, group }, key) {
  return { view: "samples", step, group: group ?? null, held: null, regrade: key.split(" ")[0] };
}

function settings({ settings: all }) {
  return h("dl", { class: "meta" }, all.map(({ path, before, after }) => [h("dt", {}, path), h("dd", {}, `${before} \u2192 ${after}`)]));
}

function verdict({ is_unchanged: isUnchanged, reproduced: done }) {
  const clip = done.of_clip_steps ? `, and the clip shares of ${number(done.clip_steps)} of ${plural(done.of_clip_steps, "step")}` : "";
  const own = `The run\u2019s own settings give ${number(done.advantages)} of its ${number(done.of_advantages)} recorded advantages to the last bit${clip}.`;
  return isUnchanged ? `${own} Nothing changes: scores, advantages and coefficients are the recorded ones.` : own;
}

function sides({ whole }) {
  const rows = ROWS.filter(([, key]) => !["failed", "abstained"].includes(key) || whole[`before/${key}`] || whole[`after/${key}`]);
  return h("table", { class: "regrade" },
    h("thead", {}, h("tr", {}, [`All of ${plural(whole.rollouts, "rollout")}`, "before", "after"].map((title, at) => h("th", { scope: "col", class: at ? "figure" : null }, title)))),
    h("tbody", {}, rows.map(([title, key, show]) => h("tr", {}, h("th", { scope: "row" }, title), ["before", "after"].map((side) => h("td", { class: "figure" }, show(whole[`${side}/${key}`])))))));
}

function agreement({ whole }) {
  const facts = [
    ["Advantages", number(whole.advantage_correlation), "correlation"], ["Coefficients", number(whole.cosine), "cosine"],
    ["Same sign", percent(whole.same_sign), `of ${plural(whole.tokens, "token")}`], ["Norm", number(whole.relative_norm), "after / before"],
  ];
  return h("dl", { class: "facts" }, facts.map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("small", {}, more)))));
}

function limits({ failures, left_out: leftOut, notes }) {
  const said = [...failures.map(([why, count]) => `${plural(count, "time")}: ${why}`), ...leftOut.map((why) => `Left out: ${why}`), ...notes];
  return said.length ? h("ul", { class: "limits", "aria-label": "What limits these numbers" }, said.map((text) => h("li", {}, text))) : null;
}

function changed(found, info) {
  if (!found.changed_most.length) return null;
  const titles = ["Rollout", "Score", "after", "Advantage", "after", ""];
  return [h("h3", { class: "changed" }, "Changed most"), h("table", { class: "regrade" },
    h("thead", {}, h("tr", {}, titles.map((title, at) => (at === 5 ? h("td", {}) : h("th", { scope: "col", class: at ? "figure" : null }, title))))),
    h("tbody", {}, found.changed_most.map((row) => h("tr", {},
      h("td", {}, h("a", { href: link(state(), { ...place(row, found.id), run: info.id }) }, `step ${row.step}, group ${row.group}, #${row.index}`)),
      [number(row.score_before), number(row.score_after), signed(row.advantage_before), signed(row.advantage_after)].map((text) => h("td", { class: "figure" }, text)),
      h("td", { class: "note" }, row.why)))))];
}
