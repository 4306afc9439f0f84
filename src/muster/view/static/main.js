// The page: which view is shown, and what keeps it up to date.

import { ask, isExported } from "./api.js";
import { CurvesView } from "./curves.js";
import { byId, h, replace, speak } from "./dom.js";
import { duration } from "./format.js";
import { askForStep, listenToKeys, showKeys } from "./keys.js";
import { overview } from "./overview.js";
import { nextTheme, takeTheme } from "./palette.js";
import { RegradesView } from "./regrades.js";
import { drawRuns } from "./runlist.js";
import { SamplesView } from "./samples.js";
import { fresh, nearest } from "./series.js";
import { SetupView } from "./setup.js";
import { go, link, onState, shownRuns, state } from "./state.js";

const POLL_MS = 2000;
const LIST_EVERY = 5;
const VIEWS = { curves: CurvesView, samples: SamplesView, regrades: RegradesView, setup: SetupView };

/** What is known about the runs by now. */
const book = {
  runs: [],
  infos: new Map(),
  asked: new Map(),
  info: (id) => book.infos.get(id),
  nameOf: (id) => book.runs.find((run) => run.id === id)?.name || id,
};
const page = { view: null, kind: "", run: "", head: h("div"), body: h("div", { id: "view" }) };

async function start() {
  takeTheme();
  onState(render);
  byId("help-button").addEventListener("click", showKeys);
  byId("theme-button").addEventListener("click", changeTheme);
  byId("runs-button").addEventListener("click", toggleRuns);
  if (matchMedia("(max-width: 800px)").matches) toggleRuns();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  listenToKeys(ACTIONS);
  await listRuns();
  const first = book.runs.find((run) => run.status.state === "running") || [...book.runs].sort((a, b) => a.status.age_s - b.status.age_s)[0];
  if (!state().run && first) go({ run: first.id }, true);
  else await render();
  if (!isExported) setTimeout(poll, POLL_MS, 1);
}

async function listRuns() {
  try {
    book.runs = (await ask("/api/runs")).runs;
  } catch (error) {
    return replace(byId("main"), h("p", { class: "problem", role: "alert" }, `The runs can\u2019t be listed: ${error.message}`));
  }
  drawRuns(book.runs);
  if (!book.runs.length) replace(byId("main"), welcome());
}

function welcome() {
  return h("section", { class: "welcome" }, h("h1", {}, "No runs here yet"), h("p", {}, "Start one in another terminal; it appears here with its first step:"), h("pre", {}, "muster init my-run\nmuster train my-run/run.toml"));
}

/** Shows what the state says; numbers that aren't known yet are asked for. */
async function render() {
  drawRuns(book.runs);
  const { run, view } = state();
  if (!run) return;
  const known = shownRuns();
  try {
    await Promise.all(known.map(async (id) => {
      if (!book.infos.has(id)) await learn(id);
    }));
  } catch (error) {
    page.view?.leave();
    page.view = null;
    return replace(byId("main"), h("p", { class: "problem", role: "alert" }, error.message));
  }
  if (run === state().run && view === state().view) draw();
}

async function learn(id) {
  const [info] = await Promise.all([ask(`/api/runs/${id}`), fresh(id)]);
  book.infos.set(id, info);
  // After what is known has been drawn.
  setTimeout(examine, 0, id);
}

/** Asks for the doctor's findings where training told none; the curves don't wait for them. */
async function examine(id) {
  try {
    book.asked.set(id, await ask(`/api/runs/${id}/findings`));
  } catch (error) {
    book.asked.set(id, { findings: [], unasked: [], unread: [error.message] });
  }
  if (id === state().run && book.info(id)) draw();
}

function draw() {
  const info = book.info(state().run), kind = state().view in VIEWS ? state().view : "curves";
  if (!page.view || page.kind !== kind || page.run !== info.id) {
    page.view?.leave();
    replace(byId("main"), page.head, page.body);
    Object.assign(page, { kind, run: info.id, view: new VIEWS[kind](page.body, book) });
  }
  const open = page.head.querySelector(".findings")?.open;
  replace(page.head, overview(info, book.asked.get(info.id)));
  if (open !== undefined && page.head.querySelector(".findings")) page.head.querySelector(".findings").open = open;
  document.title = `${info.name} \u2013 Muster`;
  page.view.update(info);
  crumbs(info);
}

function crumbs(info) {
  const { view, step, group } = state();
  const deep = view === "samples" && step !== "";
  replace(byId("crumbs"),
    h("a", { href: link(state(), { view: "curves", step: null, group: null }) }, h("bdi", {}, info.name)),
    deep ? [h("span", { "aria-hidden": "true" }, " / "), h("a", { href: link(state(), { group: null }) }, `${state().held ? "held-out, " : ""}step ${step}`)] : null,
    deep && group !== "" ? [h("span", { "aria-hidden": "true" }, " / "), h("span", {}, `group ${group}`)] : null);
}

/** Looks for news, now and then in the whole list; waits while nobody looks. */
async function poll(count) {
  if (!document.hidden) {
    try {
      if (count % LIST_EVERY === 0) await listRuns();
      for (const id of shownRuns()) await follow(id);
      replace(byId("live"), liveText());
    } catch {
      replace(byId("live"), "no answer");
    }
  }
  setTimeout(poll, POLL_MS, count + 1);
}

async function follow(id) {
  const isNew = await fresh(id);
  const before = book.info(id);
  if (!before || (!isNew && !["running", "silent"].includes(before.status.state))) return;
  const info = await ask(`/api/runs/${id}`);
  book.infos.set(id, info);
  if (info.status.state !== before.status.state) examine(id);
  const isChanged = isNew || info.status.state !== before.status.state || info.findings.length !== before.findings.length;
  if (isChanged && shownRuns().includes(id)) draw();
}

function liveText() {
  const status = book.info(state().run)?.status;
  if (status?.state !== "running") return "";
  return [h("i", { class: "dot", "aria-hidden": "true" }), `live, ${duration(status.age_s)} ago`];
}

function changeTheme() {
  speak(`Theme: ${nextTheme()}`);
  render();
}

function toggleRuns() {
  const isOpen = document.body.classList.toggle("without-runs");
  byId("runs-button").setAttribute("aria-expanded", isOpen ? "false" : "true");
}

function move(by) {
  if (page.kind === "samples") return page.view.next(by);
  const links = [...document.querySelectorAll("#run-list a")];
  const at = links.findIndex((one) => one.getAttribute("aria-current"));
  links[Math.max(0, Math.min(links.length - 1, at + by))]?.click();
}

function moveStep(by) {
  const info = book.info(state().run);
  if (!info) return;
  if (page.kind === "samples") page.view.nextStep(info, by);
  else goToStep(info.sample_steps[by > 0 ? 0 : info.sample_steps.length - 1]);
}

function goToStep(step) {
  const steps = book.info(state().run)?.[state().held ? "eval_steps" : "sample_steps"] || [];
  const found = nearest(steps, step);
  if (found !== null) go({ view: "samples", step: found, group: null });
}

function search() {
  const field = byId(page.kind === "samples" ? "text-field" : "run-search");
  document.body.classList.remove("without-runs");
  field?.focus();
  field?.select();
}

const ACTIONS = {
  j: () => move(1),
  k: () => move(-1),
  "[": () => moveStep(-1),
  "]": () => moveStep(1),
  g: () => askForStep(book.info(state().run)?.sample_steps || [], goToStep),
  "/": search,
  "?": showKeys,
  c: () => go({ view: "curves" }),
  s: () => go({ view: "samples" }),
  b: () => page.kind === "samples" && go({ show: state().show === "pair" ? null : "pair" }, true),
  t: changeTheme,
};

start();
