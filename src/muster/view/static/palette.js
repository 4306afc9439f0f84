// Colours that stay apart for colour-blind eyes (after Okabe and Ito), each with a dash and a sign of its own.
// The tables are strict JSON: figures in notebooks have the same (muster.notebook.panels).

export const LIGHT = ["#0b6fb3", "#c2500a", "#00806a", "#9c4a83", "#8a6d00", "#3f88c5", "#a33", "#4a4a4a"];
const DARK = ["#5ab4f0", "#f0904a", "#3cc8a4", "#e08bc4", "#e0c24a", "#9ecbf0", "#f08080", "#bdbdbd"];
export const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,2px", "2px,6px"];
const SIGNS = ["\u25cf", "\u25b2", "\u25a0", "\u25c6", "\u25bc", "\u2605", "\u271a", "\u25cb"];
export const PATTERNS = ["", "/", "x", ".", "\\", "-", "|", "+"];

/** Dark colours are shown, whether chosen or the system's. */
export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Colour, dash and sign of the n-th line. */
export function look(place) {
  const at = place % LIGHT.length;
  return { color: (isDark() ? DARK : LIGHT)[at], dash: DASHES[at], sign: SIGNS[at] };
}

/** The colour with some of it seen through. */
export function faint(color, share) {
  const part = color.length === 4 ? [1, 2, 3].map((at) => color[at] + color[at]) : [1, 3, 5].map((at) => color.slice(at, at + 2));
  return `rgba(${part.map((two) => parseInt(two, 16)).join(",")},${share})`;
}

/** Colours of axes and text, from the style sheet. */
export function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Light, dark, or as the system has it: the next of the three. */
export function nextTheme() {
  const root = document.documentElement;
  const now = root.dataset.theme || "";
  const next = now === "" ? (isDark() ? "light" : "dark") : "";
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  try {
    localStorage.setItem("muster-theme", next);
  } catch {
    // Where nothing may be stored, the choice holds until the page is left.
  }
  return next || "system";
}

/** Takes up the theme that was chosen before. */
export function takeTheme() {
  try {
    const chosen = localStorage.getItem("muster-theme");
    if (chosen) document.documentElement.dataset.theme = chosen;
  } catch {
    // As above.
  }
}
