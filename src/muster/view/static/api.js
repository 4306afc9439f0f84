// Where answers come from: the server, or the data that an exported page carries in itself.

const carried = document.getElementById("exported");
const answers = carried ? JSON.parse(carried.textContent) : null;

/** The page was exported: it holds some steps of some runs and knows no server. */
export const isExported = answers !== null;

/** The answer to a question; throws with the reason where there is none. */
export async function ask(path, query = {}) {
  const asked = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  if (isExported) return fromExport(path, Object.fromEntries(asked));
  const text = asked.length ? `?${new URLSearchParams(asked)}` : "";
  const response = await fetch(path + text, { headers: { accept: "application/json" } });
  const type = response.headers.get("content-type") || "";
  const body = type.includes("json") ? await response.json() : { error: await response.text() };
  if (!response.ok) throw new Error(body.error || `The server answered ${response.status}.`);
  return body;
}

function fromExport(path, query) {
  const key = query.held_out ? `${path}?held_out=1` : path;
  if (!(key in answers)) throw new Error("This file holds chosen steps only, and not this one. Open the run with muster view.");
  const answer = answers[key];
  if (path.endsWith("/curves")) return Number(query.from || 0) >= answer.end ? { ...answer, start: answer.end, columns: {} } : answer;
  return query.text ? { ...answer, groups: holding(key, answer.groups, query.text.toLowerCase()) } : answer;
}

function holding(path, groups, text) {
  const [bare, question = ""] = path.split("?");
  const found = [];
  for (const line of groups) {
    const group = answers[`${bare}/groups/${line.group}${question ? `?${question}` : ""}`];
    const matches = group.rollouts.filter((rollout) => rollout.text.toLowerCase().includes(text)).length;
    const all = group.prompt.toLowerCase().includes(text) ? group.rollouts.length : matches;
    if (all) found.push({ ...line, matches: all });
  }
  return found;
}
