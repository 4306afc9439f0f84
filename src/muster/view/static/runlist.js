// The list of runs: search, a curve each, and which are compared.

import { byId, h, pausing, replace, svg } from "./dom.js";
import { duration, number, signed } from "./format.js";
import { isDark, look } from "./palette.js";
import { go, link, shownRuns, state } from "./state.js";

const WRITERS = { trl: "TRL", metrics: "metrics only" };
const STATES = {
  running: ["\u25b6", "running"], silent: ["\u2026", "silent"], finished: ["\u2713", "finished"], stopped: ["\u25a0", "stopped"],
  failed: ["\u2717", "failed"], killed: ["\u2717", "killed"],
};

/** Sign and word of a run's state; nothing where no event tells of it. */
export function stateOf(status) {
  if (!STATES[status.state]) return null;
  const [sign, word] = STATES[status.state];
  return h("span", { class: `state ${status.state}` }, h("span", { "aria-hidden": "true" }, `${sign} `), status.state === "silent" ? `silent for ${duration(status.age_s)}` : word);
}

/** Fills the list; keeps the search field, so that typing goes on. */
export function drawRuns(runs) {
  const place = byId("runs");
  if (!byId("run-list")) {
    const search = h("input", {
      type: "search", id: "run-search", placeholder: "Search runs", "aria-label": "Search runs", value: state().find, autocomplete: "off", spellcheck: "false",
      oninput: pausing(120, (event) => go({ find: event.target.value }, true)),
    });
    replace(place, h("h2", { class: "unseen" }, "Runs"), search, h("ul", { id: "run-list" }), h("p", { class: "note", id: "run-note" }));
  }
  const wanted = state().find.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter((run) => wanted.every((word) => `${run.name} ${run.status.state} ${WRITERS[run.kind] || ""}`.toLowerCase().includes(word)));
  const key = JSON.stringify([found, shownRuns(), isDark()]);
  if (byId("run-list").dataset.key !== key) {
    replace(byId("run-list"), found.map(entry));
    byId("run-list").dataset.key = key;
  }
  replace(byId("run-note"), runs.length === 0 ? "No runs here yet." : found.length === 0 ? "No run matches." : null);
}

function entry(run) {
  const shown = shownRuns();
  const place = shown.indexOf(run.id);
  const style = place >= 0 ? look(place) : null;
  const change = run.status.change;
  return h("li", { class: place === 0 ? "run current" : "run" },
    h("a", { href: link(state(), { run: run.id, with: null, step: null, group: null, held: null, from: null, to: null }), "aria-current": place === 0 ? "true" : null },
      h("span", { class: "run-name" }, style && shown.length > 1 ? h("span", { class: "sign", "aria-hidden": "true", var: { color: style.color } }, style.sign) : null, h("bdi", {}, run.name)),
      spark(run.curve),
      h("span", { class: "run-facts" },
        WRITERS[run.kind] || stateOf(run.status), ` \u00b7 step ${number(run.status.step)}${run.status.steps ? `/${number(run.status.steps)}` : ""}`),
      h("span", { class: "run-reward" }, number(run.status.reward), change === null ? null : h("small", {}, ` ${signed(change)}`))),
    place === 0 ? null : h("label", { class: "compare", title: "Compare" },
      h("input", { type: "checkbox", checked: place > 0, disabled: !state().run, "aria-label": `Compare ${run.name}`, onchange: () => toggle(run.id) }), h("span", { "aria-hidden": "true" }, "compare")));
}

function toggle(run) {
  const others = new Set(state().with.split(",").filter(Boolean));
  if (!others.delete(run)) others.add(run);
  go({ with: [...others].join(","), view: "curves" });
}

/** A small curve of some values; a gap where there is none. */
export function spark(values, width = 72, height = 22) {
  const there = values.filter((value) => value !== null);
  const low = Math.min(...there), span = Math.max(...there) - low || 1;
  const x = (at) => 1 + (at * (width - 2)) / Math.max(1, values.length - 1), y = (value) => height - 2 - ((value - low) / span) * (height - 4);
  let path = "", isDrawing = false;
  values.forEach((value, at) => {
    if (value !== null) path += `${isDrawing ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    isDrawing = value !== null;
  });
  return svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, there.length ? svg("path", { d: path }) : null);
}
