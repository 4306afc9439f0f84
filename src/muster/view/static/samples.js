// A step's groups as a table, and beside it the group that was chosen.

import { ask } from "./api.js";
import { h, pausing, replace, speak } from "./dom.js";
import { number, percent, plural } from "./format.js";
import { GroupView } from "./group.js";
import { nearest } from "./series.js";
import { go, state } from "./state.js";

const FLAGS = {
  mixed: "mixed", all_right: "all right", all_wrong: "all wrong", equal_between: "equal", truncated: "cut", failed: "failed",
  unscored: "no score", alike: "alike", replaced: "redrawn",
};
const FLAG_TITLES = {
  all_right: "Every rollout has the full score: no gradient", all_wrong: "Every rollout scored 0 or less: no gradient", equal_between: "All scores are equal: no gradient",
  truncated: "Some rollout was cut at the limit", failed: "A reward failed on some rollout", unscored: "Some rollout has no score",
  alike: "Half of the rollouts or more are copies of another", replaced: "Dynamic sampling drew another prompt instead: not trained on",
};
const SORTS = {
  order: { title: "#", of: (line) => line.group },
  pass: { title: "Pass", about: "Share of the rollouts with the full score", of: (line) => line.pass_rate },
  mean: { title: "Reward", about: "Mean score", of: (line) => line.mean },
  spread: { title: "Spread", about: "Standard deviation of the scores", of: (line) => line.spread },
  length: { title: "Length", about: "Mean tokens", of: (line) => line.length },
  seen: { title: "Seen", about: "How often the prompt was drawn at earlier steps: 0 is new", of: (line) => line.seen },
};

export class SamplesView {
  constructor(container, book) {
    this.book = book;
    this.lines = [];
    this.tools = h("div", { class: "tools" });
    this.table = h("div", { class: "groups", tabindex: "0", role: "region", "aria-label": "Groups of the step" });
    this.detail = h("section", { class: "detail", "aria-label": "Group" });
    this.group = new GroupView(this.detail, book);
    replace(container, h("h2", { class: "unseen" }, "Samples"), this.tools, h("div", { class: "split" }, this.table, this.detail));
  }

  steps(info) {
    return state().held ? info.eval_steps : info.sample_steps;
  }

  async update(info) {
    const steps = this.steps(info);
    if (!steps.length) return this.empty(info);
    const named = state().step === "" ? NaN : Number(state().step);
    const wanted = Number.isFinite(named) ? nearest(steps, named) : steps[steps.length - 1];
    if (String(wanted) !== state().step) return go({ step: wanted }, true);
    this.fillTools(info, steps, wanted);
    const query = { held_out: state().held, text: state().text };
    const key = JSON.stringify([state().run, wanted, query]);
    if (key !== this.key) {
      this.key = key;
      try {
        const answer = await ask(`/api/runs/${state().run}/steps/${wanted}`, query);
        if (key !== this.key) return;
        this.lines = answer.groups;
      } catch (error) {
        if (key !== this.key) return;
        this.lines = [];
        replace(this.table, h("p", { class: "problem", role: "alert" }, error.message));
        this.group.clear();
        return;
      }
    }
    this.draw(info);
  }

  empty(info) {
    this.key = null;
    this.fillTools(info, [], null);
    replace(this.table, h("p", { class: "note" }, state().held ? "No evaluation left its completions here." : "This run left no samples here."));
    this.group.clear();
  }

  draw(info) {
    const lines = this.shown();
    replace(this.table, this.lines.length === 0 || lines.length === 0 ? h("p", { class: "note" }, "No group of this step matches.") : this.tableOf(lines));
    this.drawn = lines;
    const chosen = lines.find((line) => String(line.group) === state().group) || lines[0];
    if (chosen) this.group.show(info, chosen, Number(state().step));
    else this.group.clear();
  }

  shown() {
    const { low, high, flag, sort, down } = state();
    const isInside = (score) => score !== null && (low === "" || score >= Number(low)) && (high === "" || score <= Number(high));
    const kept = this.lines.filter((line) => (low === "" && high === "") || line.scores.some(isInside))
      .filter((line) => !flag || (flag === "mixed" ? line.spread > 0 : line.flags.includes(flag)));
    const of = (SORTS[sort] || SORTS.order).of, sign = down ? -1 : 1;
    return kept.sort((a, b) => {
      const [x, y] = [of(a), of(b)];
      if (x === y) return a.group - b.group;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return sign * (x - y);
    });
  }

  tableOf(lines) {
    const ends = this.lines.flatMap((line) => [line.worst, line.best]).filter((score) => score !== null);
    const range = [Math.min(0, ...ends), Math.max(...ends, 1e-9)], shared = sharedStart(this.lines);
    const head = Object.entries(SORTS).filter(([id]) => id !== "seen" || !state().held).map(([id, sort]) => this.heading(id, sort));
    return h("table", {},
      h("thead", {}, h("tr", {}, head[0], h("th", { scope: "col" }, "Prompt"), h("th", { scope: "col" }, "Scores"), head.slice(1))),
      h("tbody", {}, lines.map((line) => this.row(line, range, shared))));
  }

  heading(id, sort) {
    const isSorted = state().sort === id;
    const direction = isSorted ? (state().down ? "descending" : "ascending") : null;
    const turn = () => go({ sort: id, down: isSorted && !state().down ? "1" : null }, true);
    return h("th", { scope: "col", class: "figure", "aria-sort": direction, title: sort.about },
      h("button", { type: "button", class: "sort", onclick: turn }, sort.title, h("span", { "aria-hidden": "true" }, isSorted ? (state().down ? " \u2193" : " \u2191") : "")));
  }

  row(line, range, shared) {
    const isChosen = String(line.group) === (state().group === "" ? String(this.shown()[0].group) : state().group);
    const choose = () => go({ group: line.group }, true);
    return h("tr", { class: isChosen ? "chosen" : null, "data-group": line.group, onclick: choose },
      h("td", { class: "figure" }, h("button", { type: "button", class: "open", "aria-pressed": isChosen ? "true" : "false", "aria-label": `Group ${line.group}: ${line.prompt.slice(-80)}` }, String(line.group))),
      h("td", { class: "prompt" }, h("div", {}, h("bdi", {}, shared ? `\u2026 ${line.prompt.slice(shared)}` : line.prompt)), h("div", { class: "flags" }, line.flags.map((flag) => h("span", { class: `flag ${flag}`, title: FLAG_TITLES[flag] }, FLAGS[flag] || flag)), state().text ? h("span", { class: "flag" }, plural(line.matches, "match", "matches")) : null)),
      h("td", {}, strip(line.scores, range)),
      h("td", { class: "figure" }, percent(line.pass_rate)), h("td", { class: "figure" }, number(line.mean)), h("td", { class: "figure" }, number(line.spread)),
      h("td", { class: "figure" }, line.length === null ? "\u2013" : String(Math.round(line.length))),
      state().held ? null : h("td", { class: "figure" }, line.seen === 0 ? "new" : number(line.seen)));
  }

  fillTools(info, steps, step) {
    const key = JSON.stringify([state().run, steps.length, step, state().held, state().flag, state().low, state().high, info.eval_steps.length]);
    if (key === this.toolsKey) return;
    this.toolsKey = key;
    const at = steps.indexOf(step);
    const jump = (to, name, sign) => h("button", { type: "button", disabled: to === undefined, "aria-label": name, title: name, onclick: () => go({ step: to, group: null }) }, sign);
    const text = pausing(200, (event) => go({ text: event.target.value, group: null }, true));
    const bound = (name, title) => h("input", { type: "number", step: "any", class: "bound", value: state()[name], placeholder: title, "aria-label": `Reward ${title}`, onchange: (event) => go({ [name]: event.target.value, group: null }, true) });
    replace(this.tools,
      h("span", { class: "stepper", role: "group", "aria-label": "Step" }, jump(steps[at - 1], "Step before  [", "\u2190"),
        h("label", {}, "Step ", h("input", { type: "number", id: "step-field", value: step ?? "", min: steps[0], max: steps[steps.length - 1], onchange: (event) => go({ step: event.target.value, group: null }) })),
        jump(steps[at + 1], "Next step  ]", "\u2192"), h("span", { class: "note" }, steps.length ? `${at + 1} of ${steps.length}` : null)),
      info.eval_steps.length ? h("label", {}, h("span", { class: "unseen" }, "Which "), h("select", { onchange: (event) => go({ held: event.target.value, step: null, group: null }) },
        h("option", { value: "", selected: !state().held }, "training"), h("option", { value: "1", selected: Boolean(state().held) }, "held-out"))) : null,
      h("input", { type: "search", id: "text-field", placeholder: "Find in prompts and completions", "aria-label": "Find in prompts and completions", maxlength: "500", value: state().text, oninput: text }),
      h("span", { class: "bounds" }, "Reward ", bound("low", "from"), " ", bound("high", "to")),
      h("label", {}, h("span", { class: "unseen" }, "Kind "), h("select", { onchange: (event) => go({ flag: event.target.value, group: null }, true) },
        h("option", { value: "" }, "all groups"), Object.entries(FLAGS).map(([flag, title]) => h("option", { value: flag, selected: state().flag === flag }, title)))));
  }

  /** The group before or after the one that is shown. */
  next(by) {
    if (!this.drawn?.length) return;
    const at = this.drawn.findIndex((line) => String(line.group) === state().group);
    const line = this.drawn[Math.max(0, Math.min(this.drawn.length - 1, (at < 0 ? 0 : at) + by))];
    go({ group: line.group }, true);
    this.table.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
    speak(`Group ${line.group}, mean reward ${number(line.mean)}`);
  }

  /** The step before or after. */
  nextStep(info, by) {
    const steps = this.steps(info);
    const at = steps.indexOf(Number(state().step)) + by;
    if (at >= 0 && at < steps.length) go({ step: steps[at], group: null });
  }

  leave() {
    this.group.leave();
  }
}

/** How many letters all prompts of a step begin with, up to a word's end: what need not be read in each. */
function sharedStart(lines) {
  const first = lines[0].prompt;
  let length = lines.length > 1 ? first.length : 0;
  for (const { prompt } of lines) while (!prompt.startsWith(first.slice(0, length))) length--;
  const word = first.lastIndexOf(" ", length - 1) + 1;
  return word > 20 && lines.every(({ prompt }) => prompt.length > word + 8) ? word : 0;
}

/** The scores of a group as a strip of marks from the lowest to the highest there is. */
function strip(scores, [low, high]) {
  const there = scores.filter((score) => score !== null);
  const counts = new Map();
  for (const score of there) counts.set(score, (counts.get(score) || 0) + 1);
  const span = high - low || 1;
  return h("span", { class: "strip", role: "img", "aria-label": `${plural(there.length, "score")} from ${number(Math.min(...there))} to ${number(Math.max(...there))}` },
    [...counts].map(([score, count]) => h("i", { title: `${count} \u00d7 ${number(score)}`, var: { left: `${(100 * (score - low)) / span}%`, height: `${25 + (75 * count) / there.length}%` } })));
}
