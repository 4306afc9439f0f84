// What one rollout got under the regrade that is chosen: a line beside what the run gave it.

import { ask } from "./api.js";
import { h } from "./dom.js";
import { number, signed } from "./format.js";
import { state } from "./state.js";

/** The rollouts of a step under the chosen regrade, by group and index; none where none is chosen. */
export async function regradedRows(step) {
  const { run, regrade, held } = state();
  if (!regrade || held) return new Map();
  // Asked for each time: a regrade of the same name may have been made anew.
  const { rollouts } = await ask(`/api/runs/${run}/regrades/${regrade}/steps/${step}`).catch(() => ({ rollouts: [] }));
  return new Map(rollouts.map((row) => [`${row.group} ${row.index}`, row]));
}

/** The line; null where the regrade says nothing of the rollout. */
export function regradedLine(rows, group, index) {
  const row = rows.get(`${group} ${index}`);
  if (!row) return null;
  const score = row.score_after === null ? row.why || "no score" : number(row.score_after);
  return h("p", { class: "regraded" }, h("b", {}, "regraded "), `${score} \u00b7 A ${signed(row.advantage_after)}`);
}
