// What is looked at, kept in the address: back, forward and a copied link lead to the same view.

const DEFAULTS = {
  run: "", with: "", view: "curves", step: "", group: "", held: "", sort: "order", down: "", text: "", flag: "",
  low: "", high: "", colour: "advantage", part: "", show: "all", ids: "", smooth: "1", from: "", to: "", more: "", find: "", regrade: "",
};
const listeners = [];
let current = read();

/** The state as the address has it. */
export function state() {
  return current;
}

/** Changes some of it. A step in the history, unless `quiet` says that it isn't worth one (typing, zooming). */
export function go(changes, quiet = false) {
  const next = { ...current };
  for (const [key, value] of Object.entries(changes)) next[key] = value === null ? DEFAULTS[key] : String(value);
  const address = link(next, {});
  if (address === link(current, {})) return;
  current = next;
  history[quiet ? "replaceState" : "pushState"](null, "", address);
  tell();
}

/** The address of the state with some of it changed. */
export function link(from, changes) {
  const parts = [];
  for (const key of Object.keys(DEFAULTS)) {
    const value = key in changes ? (changes[key] === null ? DEFAULTS[key] : String(changes[key])) : from[key];
    if (value !== DEFAULTS[key]) parts.push(`${key}=${encodeURIComponent(value)}`);
  }
  return `#${parts.join("&")}`;
}

/** Calls back after every change, with the state before it. */
export function onState(listener) {
  listeners.push(listener);
}

/** The runs that are shown: the first is the one that all but the curves are about. */
export function shownRuns() {
  return [current.run, ...current.with.split(",")].filter(Boolean);
}

function read() {
  const found = { ...DEFAULTS };
  for (const part of location.hash.slice(1).split("&")) {
    const [key, value = ""] = part.split("=");
    if (key in DEFAULTS) {
      try {
        found[key] = decodeURIComponent(value);
      } catch {
        found[key] = DEFAULTS[key];
      }
    }
  }
  return found;
}

function tell() {
  for (const listener of listeners) listener(current);
}

window.addEventListener("popstate", () => {
  current = read();
  tell();
});
window.addEventListener("hashchange", () => {
  const found = read();
  if (link(found, {}) === link(current, {})) return;
  current = found;
  tell();
});
