// What tokens can be coloured by: a number per token, its scale, and what the number means.
//
// A class of CSS carries the colour: `p1` to `p4` above the middle (and a solid line below the token), `n1` to
// `n4` under it (a dotted line), `q1` to `q5` for what only grows, `mid`, and `na` where there is no number.

import { number, signed } from "./format.js";

const log = (value) => (value > 0 ? Math.log(value) : null);

export const COLOURS = {
  advantage: { title: "advantage", kind: "diverging", about: "How much better than its group the rollout was: what its tokens are pushed up or down by." },
  logprob: { title: "logprob", kind: "growing", top: 6, about: "Surprise, \u2212log \u03c0, when it was sampled: darker is less likely." },
  ratio: { title: "ratio", kind: "diverging", about: "Policy over old policy, \u03c0 / \u03c0_old, at the last training forward. Full colour at the clip range." },
  entropy: { title: "entropy", kind: "growing", top: 3, about: "Of the next-token distribution, in nats: darker is where the policy had a choice." },
  kl: { title: "KL", kind: "diverging", top: 1, about: "log \u03c0 \u2212 log \u03c0_ref at the token: solid line where the policy likes it more than the reference does." },
  clipped: { title: "clipped", kind: "clipped", about: "Tokens without gradient since their ratio left the clip range on the side of their advantage." },
  part: { title: "reward part", kind: "diverging", about: "One reward of the rollout, from the lowest to the highest in its group." },
};

/** Of a token that the policy did not emit: it was given it, by the template or by an environment. */
const NOTHING = { logprob: null, old: null, now: null, ref: null, ratio: null, entropy: null, kl: null, counts: false, clipped: null };

/** The numbers of token `at`: what the tip shows and what colours are made of. */
export function numbersOf(tokens, at, rollout, clip) {
  const old = pick(tokens.old_logprobs, at), now = pick(tokens.logprobs, at), ref = pick(tokens.ref_logprobs, at);
  if (tokens.emitted && !tokens.emitted[at]) return { ...NOTHING, given: true };
  const logprob = pick(tokens.sampler_logprobs, at);
  const ratio = old === null || now === null ? null : Math.exp(now - old);
  return {
    logprob, old, now, ref, ratio,
    entropy: pick(tokens.entropy, at),
    kl: now === null || ref === null ? null : now - ref,
    counts: tokens.mask ? tokens.mask[at] : null,
    clipped: clippedOf(ratio, rollout.advantage, tokens.mask ? tokens.mask[at] : true, clip),
  };
}

function pick(values, at) {
  return values ? values[at] : null;
}

function clippedOf(ratio, advantage, counts, clip) {
  if (!clip || ratio === null || advantage === null) return null;
  if (!counts || advantage === 0) return "";
  if (advantage > 0 && ratio > 1 + clip.high) return "high";
  if (advantage < 0 && (ratio < 1 - clip.low)) return "low";
  return advantage < 0 && clip.cap && ratio > clip.cap ? "low" : "";
}

/** The class of a token under a colour. `range` is what the group's rollouts span. */
export function classOf(colour, numbers, rollout, range) {
  switch (colour) {
    case "advantage": return diverging(rollout.advantage, range.advantage);
    case "logprob": return growing(numbers.logprob === null ? null : -numbers.logprob, COLOURS.logprob.top);
    case "ratio": return diverging(numbers.ratio === null ? null : log(numbers.ratio), range.ratio);
    case "entropy": return growing(numbers.entropy, COLOURS.entropy.top);
    case "kl": return diverging(numbers.kl, COLOURS.kl.top);
    case "clipped": return numbers.clipped === null ? "na" : numbers.clipped === "high" ? "p4 cut" : numbers.clipped === "low" ? "n4 cut" : "mid";
    default: return diverging(centred(rollout.parts[range.part], range.parts), 1);
  }
}

function centred(value, [low, high]) {
  if (value === null || value === undefined) return null;
  return high > low ? (2 * (value - low)) / (high - low) - 1 : 0;
}

function diverging(value, top) {
  if (value === null || value === undefined) return "na";
  const size = Math.min(4, Math.ceil((4 * Math.abs(value)) / (top || 1) - 0.02));
  return size < 1 || !top ? "mid" : `${value > 0 ? "p" : "n"}${size}`;
}

function growing(value, top) {
  if (value === null || value === undefined) return "na";
  const size = Math.min(5, Math.floor((6 * value) / top));
  return size < 1 ? "mid" : `q${size}`;
}

/** The steps of a colour's scale, as pairs of class and text. */
export function legendOf(colour, range, clip) {
  if (colour === "clipped") return clip ? [["p4 cut", `above ${number(1 + clip.high)}, pushed up`], ["n4 cut", `below ${number(1 - clip.low)}, pushed down`], ["mid", "has a gradient"]] : [];
  if (colour === "part") return [["n4", number(range.parts[0])], ["mid", "between"], ["p4", number(range.parts[1])]];
  const kind = COLOURS[colour];
  if (kind.kind === "growing") return [["mid", "0"], ...[1, 2, 3, 4, 5].map((at) => [`q${at}`, `${at === 5 ? "\u2265 " : ""}${number((at * kind.top) / 6)}`])];
  const top = colour === "advantage" ? range.advantage : colour === "ratio" ? range.ratio : kind.top;
  const text = (share) => (colour === "ratio" ? number(Math.exp(share * top)) : signed(share * top));
  return [["n4", text(-1)], ["n2", text(-0.5)], ["mid", colour === "ratio" ? "1" : "0"], ["p2", text(0.5)], ["p4", text(1)]];
}

/** What a group's rollouts span: the ends of the scales. */
export function rangeOf(rollouts, part, clip) {
  const advantages = rollouts.map((rollout) => Math.abs(rollout.advantage || 0));
  const values = rollouts.map((rollout) => rollout.parts[part]).filter((value) => typeof value === "number");
  return { advantage: Math.max(...advantages, 0), ratio: Math.log(1 + (clip ? clip.high : 0.2)), part, parts: [Math.min(...values), Math.max(...values)] };
}
