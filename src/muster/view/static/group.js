// A group: its prompt, how the prompt fared over the run, and its rollouts side by side.

import { ask } from "./api.js";
import { COLOURS, legendOf, rangeOf } from "./colours.js";
import { byId, h, replace, svg } from "./dom.js";
import { number, plural, signed } from "./format.js";
import { regradedLine, regradedRows } from "./regraded.js";
import { go, link, state } from "./state.js";
import { differences, hideTip, TokenText } from "./tokens.js";

export class GroupView {
  constructor(container, book) {
    this.container = container;
    this.book = book;
    this.tokens = new Map();
    this.watch = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) this.load(entry.target.dataset.row);
    }, { root: byId("main"), rootMargin: "300px" });
  }

  clear() {
    this.key = null;
    hideTip();
    replace(this.container);
  }

  async show(info, line, step) {
    const key = [state().run, step, line.group, state().held, state().regrade].join(" ");
    if (key === this.key) return this.refresh(info);
    this.key = key;
    hideTip();
    let found, regraded;
    try {
      found = await ask(this.path(step, `groups/${line.group}`), { held_out: state().held });
      regraded = await regradedRows(step);
    } catch (error) {
      if (key === this.key) replace(this.container, h("p", { class: "problem", role: "alert" }, error.message));
      return;
    }
    if (key !== this.key) return;
    Object.assign(this, { found, regraded });
    this.tokens.clear();
    this.container.scrollTop = 0;
    this.refresh(info, true);
  }

  path(step, rest) {
    return `/api/runs/${state().run}/steps/${step}/${rest}`;
  }

  refresh(info, isNew = false) {
    if (!this.found) return;
    this.info = info;
    const { part, show, ids } = state(), colour = this.colour();
    const parts = [...new Set(this.found.rollouts.flatMap((rollout) => Object.keys(rollout.parts)))];
    this.parts = parts;
    this.range = rangeOf(this.found.rollouts, parts.includes(part) ? part : parts[0], info.clip);
    const layout = [show, ids, info.id].join(" ");
    if (isNew || layout !== this.layout) {
      this.layout = layout;
      this.build();
    } else if ([colour, part].join(" ") !== this.painted) {
      for (const card of this.cards.values()) if (card.text.tokens) card.text.colour(colour, this.range);
    }
    this.painted = [colour, part].join(" ");
    replace(this.tools, this.controls());
  }

  build() {
    this.watch.disconnect();
    this.cards = new Map();
    this.tools = h("div", { class: "tools" });
    const shown = state().show === "pair" ? this.ends() : this.found.rollouts;
    const cards = shown.map((rollout, place) => this.card(rollout, place, shown.length));
    replace(this.container, this.head(), this.tools, h("div", { class: state().show === "pair" ? "rollouts pair" : "rollouts" }, cards));
    for (const card of cards) this.watch.observe(card);
  }

  /** What tokens are coloured by: of answers that were given, all of one advantage, the logprob says more. */
  colour() {
    const isGiven = this.found.rollouts.every((rollout) => rollout.score === null && !Object.keys(rollout.parts).length);
    return isGiven && state().colour === "advantage" ? "logprob" : state().colour;
  }

  /** The best rollout and the worst; of equals the first. */
  ends() {
    const scored = this.found.rollouts.filter((rollout) => rollout.score !== null);
    if (scored.length < 2) return this.found.rollouts.slice(0, 2);
    const best = scored.reduce((a, b) => (b.score > a.score ? b : a)), worst = scored.reduce((a, b) => (b.score < a.score ? b : a));
    return best === worst ? scored.slice(0, 2) : [best, worst];
  }

  head() {
    const { found } = this, columns = Object.entries(found.columns || {});
    const place = state().held ? `evaluation at step ${found.step}` : `step ${found.step}`;
    return h("header", { class: "group-head" },
      h("h3", {}, `Group ${found.group}`, h("small", {}, ` ${place} \u00b7 `, this.info.kind === "trl" ? plural(found.rollouts.length, "rollout") : `sample ${found.sample} \u00b7 ${plural(found.rollouts.length, "rollout")}`)),
      found.visits.length > 1 ? over(found) : null,
      h("details", { class: "prompt-text", open: true }, h("summary", {}, "Prompt"),
        h("pre", { tabindex: "0", "aria-label": "Prompt" }, found.prompt),
        found.prompt_ids && state().ids ? h("p", { class: "raw" }, h("b", {}, "ids "), found.prompt_ids.join(" ")) : null,
        columns.length ? h("dl", { class: "meta" }, columns.map(([name, value]) => [h("dt", {}, name), h("dd", {}, typeof value === "string" ? value : JSON.stringify(value))])) : null));
  }

  controls() {
    const { show, ids } = state(), colour = this.colour();
    const select = h("select", { id: "colour-field", onchange: (event) => this.recolour(event.target.value) },
      Object.entries(COLOURS).flatMap(([id, { title }]) => id === "part"
        ? this.parts.map((name) => h("option", { value: `part ${name}`, selected: colour === "part" && this.range.part === name }, `reward: ${name}`))
        : [h("option", { value: id, selected: colour === id }, title)]));
    const turn = (name, on, title) => h("button", { type: "button", "aria-pressed": on ? "true" : "false", class: "toggle", onclick: () => go({ [name]: on ? null : name === "ids" ? "1" : "pair" }, true) }, title);
    return [
      h("label", { title: COLOURS[colour]?.about }, "Colour by ", select),
      h("span", { class: "scale", title: COLOURS[colour]?.about }, this.legend(colour)),
      turn("show", show === "pair", "Best and worst"), turn("ids", ids, "Token ids"),
    ];
  }

  legend(colour) {
    if (colour === "clipped" && !this.info.clip) return "this recipe clips no single token";
    return legendOf(colour in COLOURS ? colour : "advantage", this.range, this.info.clip).map(([kind, text]) => h("span", { class: `t ${kind}` }, text));
  }

  recolour(value) {
    const [colour, ...part] = value.split(" ");
    go({ colour, part: part.join(" ") || null }, true);
  }

  card(rollout, place, count) {
    const text = new TokenText(rollout, this.info.clip);
    const ended = { length: "cut at the limit", stop: null }[rollout.finish];
    const isPair = state().show === "pair" && count === 2;
    const parts = Object.entries(rollout.parts);
    const card = h("article", { class: "rollout", "data-row": rollout.row, "aria-label": `Rollout ${rollout.index}` },
      h("header", {},
        isPair ? h("b", { class: "end" }, place === 0 ? "best" : "worst") : null, h("span", { class: "index" }, `#${rollout.index}`),
        h("span", { class: "score" }, rollout.score === null ? (Object.keys(rollout.failures).length ? "failed" : parts.length ? "no score" : "given") : number(rollout.score)),
        rollout.advantage === null ? null : h("span", { class: "advantage" }, h("abbr", { title: "advantage" }, "A"), ` ${signed(rollout.advantage)}`),
        rollout.length === null || rollout.length === undefined ? null : h("span", { class: "note" }, plural(rollout.length, "token")),
        rollout.turns ? h("span", { class: "note" }, plural(rollout.turns, "turn")) : null,
        ended ? h("span", { class: "flag truncated" }, ended) : null,
        rollout.reward !== null && rollout.reward !== rollout.score ? h("span", { class: "note" }, `with penalties ${number(rollout.reward)}`) : null),
      parts.length > 1 ? h("p", { class: "parts" }, parts.map(([name, value]) => h("span", {}, name, " ", h("b", {}, number(value))))) : null,
      rollout.environment ? h("p", { class: "parts" }, "environment ", Object.entries(rollout.environment).map(([name, value]) => h("span", {}, name, " ", h("b", {}, number(value))))) : null,
      regradedLine(this.regraded, this.found.group, rollout.index),
      Object.entries(rollout.failures).map(([name, why]) => h("p", { class: "problem" }, `${name}: ${why}`)),
      text.plain(),
      rollout.left_off ? h("p", { class: "note" }, `${plural(rollout.left_off, "character")} more are not shown.`) : null);
    this.cards.set(String(rollout.row), { rollout, text, place });
    return card;
  }

  async load(row) {
    const card = this.cards.get(row), key = this.key;
    if (!card || card.text.tokens || card.isLoading) return;
    card.isLoading = true;
    try {
      if (!this.tokens.has(row)) this.tokens.set(row, await ask(this.path(this.found.step, `rollouts/${row}`), { held_out: state().held }));
    } catch {
      return; // The text is there; what a token would say is not.
    }
    if (key !== this.key || this.cards.get(row) !== card) return;
    const tokens = this.tokens.get(row);
    if (tokens.ids.length) card.text.fill(tokens, this.colour(), this.range, { ids: Boolean(state().ids) });
    if (state().show === "pair") this.compare();
  }

  compare() {
    const [best, worst] = [...this.cards.values()];
    if (!best?.text.tokens || !worst?.text.tokens) return;
    const marks = differences(best.text.tokens.ids, worst.text.tokens.ids);
    [best, worst].forEach((card, at) => {
      card.text.isDifferent = marks[at];
      card.text.colour(this.colour(), this.range);
    });
  }

  leave() {
    this.watch.disconnect();
    hideTip();
  }
}

/** The prompt over the run: mean score and span at each of its visits, the one that is shown marked. */
function over({ visits, step }) {
  const width = 220, height = 34;
  const scores = visits.flatMap((visit) => [visit.low, visit.high]).filter((value) => value !== null);
  const low = Math.min(...scores), span = Math.max(...scores) - low || 1;
  const first = visits[0].step, steps = visits[visits.length - 1].step - first || 1;
  const x = (visit) => 4 + ((visit.step - first) * (width - 8)) / steps, y = (value) => height - 4 - ((value - low) / span) * (height - 8);
  const there = visits.filter((visit) => visit.mean !== null);
  const path = there.map((visit, at) => `${at ? "L" : "M"}${x(visit).toFixed(1)} ${y(visit.mean).toFixed(1)}`).join("");
  const told = `This prompt at ${plural(there.length, "step")}: mean reward ${there.map((visit) => `${number(visit.mean)} at step ${visit.step}`).slice(-4).join(", ")}`;
  return h("p", { class: "over" }, "This prompt over time ",
    svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told },
      there.map((visit) => svg("line", { x1: x(visit), x2: x(visit), y1: y(visit.low), y2: y(visit.high), class: "span" })),
      svg("path", { d: path }), there.map((visit) => svg("circle", { cx: x(visit), cy: y(visit.mean), r: visit.step === step ? 3.6 : 1.8, class: visit.step === step ? "here" : null }))),
    there.slice(-6).map((visit) => [" ", visit.step === step ? h("b", {}, String(visit.step)) : h("a", { href: link(state(), { step: visit.step, group: null, text: null }) }, String(visit.step))]));
}
