// A run's numbers as columns that grow, and what a chart needs of them.

import { ask } from "./api.js";

const MAX_POINTS = 900;
const kept = new Map();

/** The columns of a run so far; asks for what is new. Tells whether something is. */
export async function fresh(run) {
  const known = kept.get(run) || { generation: -1, end: 0, columns: {} };
  const answer = await ask(`/api/runs/${run}/curves`, { from: known.end, generation: known.generation });
  if (kept.has(run) && answer.generation === known.generation && answer.start === answer.end) return false;
  const start = answer.generation === known.generation ? answer.start : 0;
  kept.set(run, { generation: answer.generation, end: answer.end, columns: joined(known.columns, start, answer) });
  return true;
}

/** What is known of a run's columns by now. */
export function columnsOf(run) {
  return kept.has(run) ? kept.get(run).columns : {};
}

function joined(old, start, answer) {
  const columns = {};
  for (const key of new Set([...(start ? Object.keys(old) : []), ...Object.keys(answer.columns)])) {
    const before = start ? old[key] || new Array(start).fill(null) : [];
    const after = answer.columns[key] || new Array(answer.end - answer.start).fill(null);
    columns[key] = before.concat(after);
  }
  return columns;
}

/** The mean of the numbers that are there among this one and those before it; gaps stay gaps. */
export function smoothed(values, window) {
  if (window <= 1) return values;
  return values.map((value, place) => {
    if (value === null) return null;
    let sum = 0, count = 0;
    for (let at = Math.max(0, place - window + 1); at <= place; at++) if (values[at] !== null) (sum += values[at]), count++;
    return sum / count;
  });
}

/** Places to draw of a long column: of each stretch the first, the lowest, the highest and the last value. */
export function thinned(steps, values, low, high) {
  const inside = between(steps, low, high);
  if (inside.length <= MAX_POINTS) return inside;
  const size = Math.ceil((4 * inside.length) / MAX_POINTS);
  const picked = [];
  for (let start = 0; start < inside.length; start += size) {
    const stretch = inside.slice(start, start + size);
    const there = stretch.filter((at) => values[at] !== null);
    const chosen = new Set([stretch[0], stretch[stretch.length - 1]]);
    if (there.length) {
      chosen.add(there.reduce((best, at) => (values[at] < values[best] ? at : best)));
      chosen.add(there.reduce((best, at) => (values[at] > values[best] ? at : best)));
    }
    picked.push(...[...chosen].sort((a, b) => a - b));
  }
  return picked;
}

/** The places of the steps from `low` to `high`, and one more on each side: lines run on to the edges. */
function between(steps, low, high) {
  const inside = [];
  for (let at = 0; at < steps.length; at++) if (steps[at] >= low && steps[at] <= high) inside.push(at);
  const before = inside.length ? inside[0] - 1 : placeOf(steps, low);
  const after = inside.length ? inside[inside.length - 1] + 1 : before + 1;
  return [...(before < 0 ? [] : [before]), ...inside, ...(after < steps.length ? [after] : [])];
}

/** Where the step, or the one before it, stands in a column of steps; -1 before the first. */
export function placeOf(steps, step) {
  let low = 0, high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The step there is that is nearest to this one; null where there are none. */
export function nearest(steps, step) {
  if (!steps.length) return null;
  const at = placeOf(steps, step);
  if (at < 0) return steps[0];
  return at + 1 < steps.length && steps[at + 1] - step < step - steps[at] ? steps[at + 1] : steps[at];
}
