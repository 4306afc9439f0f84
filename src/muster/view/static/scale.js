// Axes: where a value lies, and which values are written beside it.

import { number } from "./format.js";

const MINUS = "\u2212";

/** An axis from `low` to `high`, laid from one pixel to another: `place(value)`, and `value(place)` back. */
export function scaleOf({ low, high, isLog }, from, to) {
  const bent = isLog ? Math.log10 : (value) => value;
  const start = bent(low), span = bent(high) - start || 1;
  return {
    place: (value) => from + ((bent(value) - start) / span) * (to - from),
    value: (place) => {
      const at = start + ((place - from) / (to - from)) * span;
      return isLog ? 10 ** at : at;
    },
  };
}

/** About so many round values on an axis; whole ones where it counts things. */
export function ticksOf({ low, high, isLog, isWhole }, count) {
  const logs = isLog ? powers(low, high, count) : [];
  if (logs.length > 1) return logs;
  const step = Math.max(isWhole ? 1 : 0, rounded((high - low) / count));
  if (!(step > 0) || !Number.isFinite(step)) return Number.isFinite(low) ? [low] : [];
  const first = Math.ceil(low / step - 1e-9), end = Math.floor(high / step + 1e-9);
  // One value, or two, say little about where the others lie.
  if (end - first < 2 && count < 20 && !(isWhole && step === 1)) return ticksOf({ low, high, isWhole }, 1.5 * count);
  return Array.from({ length: end - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

/** 1, 2 or 5 times a power of ten, not below the number. */
function rounded(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((times) => times >= rough / power - 1e-9);
}

/** Powers of ten between these; over less than a decade and a half, 2 and 5 times them, too. */
function powers(low, high, count) {
  const first = Math.floor(Math.log10(low)), end = Math.ceil(Math.log10(high));
  const times = Math.log10(high / low) > 1.5 ? [1] : [1, 2, 5];
  const every = Math.ceil((end - first) / count);
  const all = [];
  for (let at = first; at <= end; at += every) for (const by of times) all.push(Number((by * 10 ** at).toPrecision(3)));
  return all.filter((value) => value >= low && value <= high);
}

/** What is written beside these values: with as many digits as tell neighbours apart. */
export function labelsOf(ticks, { isLog, isShare }) {
  const gaps = ticks.slice(1).map((value, at) => value - ticks[at]);
  const step = gaps.length ? Math.min(...gaps) : 0, most = Math.max(...ticks.map(Math.abs));
  if (isShare) return ticks.map((value) => `${(100 * value).toFixed(digits(100 * step)).replace("-", MINUS)}\u202f%`);
  if (isLog || !step) return ticks.map(number);
  if (most >= 1e6 || most < 0.001) return ticks.map((value) => (value ? short(value, digits(step / 10 ** Math.floor(Math.log10(most)))) : "0"));
  return ticks.map((value) => value.toFixed(digits(step)).replace("-", MINUS));
}

function digits(step) {
  return step > 0 ? Math.min(20, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))) : 0;
}

function short(value, places) {
  return value.toExponential(places).replace("-", MINUS).replace("e+", "e").replace("e-", `e${MINUS}`);
}
