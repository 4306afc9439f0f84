// The keyboard: what each key does, and the list of them.

import { byId, h, replace } from "./dom.js";

export const KEYS = [
  ["j / k", "next and previous group, or run"],
  ["[ / ]", "step before and after"],
  ["g", "go to a step"],
  ["/", "search: runs, or texts of a step"],
  ["c / s", "curves, samples"],
  ["b", "best and worst of the group, side by side"],
  ["t", "light, dark, or as the system has it"],
  ["\u2190 / \u2192", "on a chart: move the cursor; in a completion: from token to token"],
  ["Enter", "on a chart: open the step under the cursor"],
  ["?", "this list"],
];

/** Calls `actions[key]` for keys that are pressed outside of fields. */
export function listenToKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("dialog").open) return;
    const isField = event.target.closest?.("input, select, textarea");
    if (isField) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

/** Shows the list. */
export function showKeys() {
  const dialog = byId("dialog");
  replace(dialog, h("h2", { id: "dialog-title" }, "Keys"),
    h("dl", { class: "keys" }, KEYS.map(([keys, does]) => [h("dt", {}, keys.split(" / ").map((key, at) => [at ? " " : null, h("kbd", {}, key)])), h("dd", {}, does)])),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  dialog.showModal();
}

/** Asks for a step. */
export function askForStep(steps, go) {
  if (!steps.length) return;
  const dialog = byId("dialog");
  const field = h("input", { type: "number", id: "go-field", min: steps[0], max: steps[steps.length - 1], required: true });
  replace(dialog, h("h2", { id: "dialog-title" }, "Go to step"),
    h("form", { method: "dialog", onsubmit: () => go(Number(field.value)) },
      h("p", {}, h("label", {}, `${steps[0]} to ${steps[steps.length - 1]} `, field)), h("button", {}, "Go")));
  dialog.showModal();
  field.focus();
}
