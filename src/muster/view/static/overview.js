// The head of a run: how it is, in numbers, and what is to be said about it.

import { h } from "./dom.js";
import { duration, number, percent, plural, signed } from "./format.js";
import { isExported } from "./api.js";
import { stateOf } from "./runlist.js";
import { go, link, state } from "./state.js";

const SIGNS = { error: "\u2717", finding: "\u25c6", warning: "!" };
const TABS = [["curves", "Curves"], ["samples", "Samples"], ["regrades", "Regrades"], ["setup", "Settings"]];
const SHOWN_STEPS = 6;
const NOTHING = { findings: [], unasked: [], unread: [] };
const RANKS = ["error", "finding", "warning"];
const WORDS = { error: "failure", finding: "finding", warning: "warning" };

/** Name, state and tabs of a run; above its curves also its numbers and findings. */
export function overview(info, asked) {
  const { status } = info;
  return h("section", { class: "overview", "aria-label": "Run" },
    h("div", { class: "title" }, h("h1", {}, h("bdi", {}, info.name)), stateOf(status), h("span", { class: "note" }, origin(info))),
    info.problem ? h("p", { class: "problem", role: "alert" }, info.problem) : null,
    state().view === "curves" ? [h("dl", { class: "facts" }, facts(info)), findings(info, asked || NOTHING)] : null,
    h("nav", { class: "tabs", "aria-label": "Views of the run" }, TABS.filter(([id]) => id !== "regrades" || info.kind === "muster").map(([id, title]) =>
      h("a", { href: link(state(), { view: id }), "aria-current": state().view === id ? "page" : null }, title))));
}

function origin(info) {
  const writer = { trl: "written by TRL", metrics: "a plain metrics.jsonl" }[info.kind];
  const started = info.started ? new Date(info.started) : null;
  const when = started && !Number.isNaN(started.getTime()) ? `started ${started.toISOString().slice(0, 16).replace("T", " ")} UTC` : null;
  return [writer, when, isExported ? "exported" : null].filter(Boolean).join(" \u00b7 ");
}

function facts({ status }) {
  const [first, last] = [status.held_out[0], status.held_out[status.held_out.length - 1]];
  return [
    fact("Step", number(status.step), status.steps ? `of ${number(status.steps)}${status.steps > 0 ? `, ${percent(Math.min(1, status.step / status.steps))}` : ""}` : null),
    status.seconds_left === null ? null : fact("Time left", duration(status.seconds_left)),
    status.loss ? fact("Loss", number(status.loss.last), "of the answers", "Mean of \u2212log \u03c0 over the tokens of the step\u2019s answers") : fact("Reward", number(status.reward), status.change === null ? null : `${signed(status.change)} since the start`, status.change === null ? null : `Mean of the last ${plural(status.change_steps, "step")} minus that of the first ${status.change_steps}`),
    status.loss?.held_out ? fact("Held-out loss", number(status.loss.held_out), `from ${number(status.loss.held_out_first)}`, "At the last evaluation, and at the first") : null,
    last ? fact("Held-out", number(last.mean), [interval(last), first !== last ? `from ${number(first.mean)}` : null].filter(Boolean).join(" \u00b7 "), "95 % interval over prompts, and the first evaluation") : null,
    fact("Tokens/s", number(status.tokens_per_second), null, "Completion tokens over the seconds of sampling, scoring and the update, in the last 10 steps"),
  ];
}

function fact(name, value, more = null, title = null) {
  return h("div", { title }, h("dt", {}, name), h("dd", {}, h("b", {}, value), more ? h("small", {}, more) : null));
}

function interval({ low, high }) {
  return low === null || high === null ? null : `${number(low)} to ${number(high)}`;
}

function findings(info, asked) {
  const found = [...info.findings, ...asked.findings].sort((a, b) => RANKS.indexOf(a.severity) - RANKS.indexOf(b.severity));
  const said = [
    ...found.map(finding),
    info.lacks.length ? lack("not here", `${info.lacks.join("; ")}.`) : null,
    asked.unasked.length ? lack("not asked", `${asked.unasked.join("; ")}.`) : null,
    asked.unread.length ? lack("left out", asked.unread.join(" ")) : null,
    info.num_broken ? lack("unreadable", `${plural(info.num_broken, "line")} of the run\u2019s files, passed over.`) : null,
  ].filter(Boolean);
  if (!said.length) return null;
  return h("details", { class: "findings", open: found.length < 5 }, h("summary", {}, counted(found)), h("ul", {}, said));
}

/** How many there are of each severity: a warning is not a finding. */
function counted(found) {
  const counts = RANKS.map((severity) => [severity, found.filter((entry) => entry.severity === severity).length]).filter(([, count]) => count);
  return counts.length ? counts.map(([severity, count]) => plural(count, WORDS[severity])).join(", ") : "Notes";
}

function lack(name, text) {
  return h("li", { class: "lack" }, h("span", { class: "badge" }, name), h("span", {}, text));
}

function finding(entry) {
  const places = entry.evidence.slice(0, SHOWN_STEPS);
  const more = entry.evidence.length - places.length;
  return h("li", { class: entry.severity },
    h("span", { class: "badge" }, h("span", { "aria-hidden": "true" }, `${SIGNS[entry.severity]} `), entry.name),
    h("span", {}, entry.text, " ", certainty(entry), places.map((place) => [h("a", { href: link(state(), evidence(place)), class: "place" }, placeName(place)), " "]),
      more > 0 ? h("button", { type: "button", class: "quiet", onclick: () => go(evidence(entry.evidence[entry.evidence.length - 1])) }, `and ${more} more, the last`) : null,
      advice(entry)));
}

/** Its numbers, what it means and what to change: folded, so that the curves stay in sight. */
function advice(entry) {
  const numbers = numbersOf(entry);
  if (!numbers && !entry.means && !entry.change) return null;
  return h("details", { class: "advice" }, h("summary", {}, "What it means, and what to change"), numbers,
    entry.means ? h("p", {}, entry.means) : null, entry.change ? h("p", {}, h("b", {}, "Change: "), entry.change) : null);
}

/** Since when, and how sure: what a rule says before its evidence. */
function certainty({ since, sure, how }) {
  const said = [since ? `since step ${since}` : null, sure, how].filter(Boolean);
  return said.length ? h("span", { class: "note" }, `(${said.join("; ")}) `) : null;
}

/** The numbers of the evidence, those of the first steps and of the last ones side by side. */
function numbersOf({ numbers }) {
  const shown = (value) => (typeof value === "string" ? value : number(value));
  const said = Object.entries(numbers).filter(([name]) => !name.endsWith(" now") || !(name.replace(/ now$/, " at first") in numbers)).map(([name, value]) => {
    const stem = name.replace(/ at first$/, ""), later = numbers[`${stem} now`];
    return stem !== name && later !== undefined ? `${stem} ${shown(value)} \u2192 ${shown(later)}` : `${name} ${shown(value)}`;
  });
  return said.length ? h("p", {}, said.join(" \u00b7 ")) : null;
}

function evidence(place) {
  return { view: "samples", step: place.step, group: place.group ?? null, held: null };
}

function placeName(place) {
  return `step ${place.step}${place.group === undefined ? "" : `, group ${place.group}`}${place.rollout === undefined ? "" : `, #${place.rollout}`}`;
}
