// What the curves are: keys of metrics.jsonl, how each is computed, and what is healthy.
//
// `lines` are keys drawn as lines, `band` two keys or a spread around the first line, `stack` keys drawn on
// top of each other, `compare` the one key that several runs are compared by. `parts` and `phases` stand for
// as many keys as the run has; with `atLeast` a panel is there from so many keys on. The list is
// strict JSON: figures in notebooks are drawn by it, too (muster.notebook.panels).

export const PANELS = [
  {
    "id": "reward", "title": "Reward", "lines": ["reward"], "spread": "reward_std", "names": {"reward": "mean"},
    "formula": "Mean score of the step\u2019s completions. Band: plus and minus the mean standard deviation (G \u2212 1) within a group.",
    "healthy": "Rises. The band stays open: where a group\u2019s scores are all equal, it teaches nothing."
  },
  {
    "id": "held-out", "title": "Held-out reward", "lines": ["eval_reward"], "band": ["eval_reward/low", "eval_reward/high"], "points": true, "names": {"eval_reward": "held-out mean"},
    "formula": "Mean over held-out prompts of the mean score of a prompt\u2019s completions. Bars: 95\u202f% bootstrap interval over prompts.",
    "healthy": "Rises behind the reward. A gap that widens is memorization, or a reward that is being gamed."
  },
  {
    "id": "held-out-loss", "title": "Held-out loss", "lines": ["eval_loss"], "points": true, "atLeast": 1, "names": {"eval_loss": "held-out loss"},
    "formula": "Of a warm start: mean of \u2212log \u03c0 over the tokens of the held-out answers, in nats. Its exponential is the perplexity.",
    "healthy": "Falls. Rising while the loss still falls is memorization: stop there, checkpoints/best is the one to take."
  },
  {
    "id": "accuracy", "title": "Token accuracy", "lines": ["mean_token_accuracy"], "range": [0, 1], "share": true, "atLeast": 1, "names": {"mean_token_accuracy": "likeliest"},
    "formula": "Of a warm start: share of the answers\u2019 tokens that the policy finds likelier than any other, given those before them.",
    "healthy": "Rises with the held-out one. 1 means that the answers are known by heart."
  },
  {
    "id": "parts", "title": "Each reward", "lines": ["rewards/*/mean"], "atLeast": 2,
    "formula": "Mean of each reward function alone, without its weight, over all completions.",
    "healthy": "Each rises, not one at the cost of another."
  },
  {
    "id": "groups", "title": "Groups", "stack": ["groups/mixed", "groups/all_right", "groups/equal_between", "groups/all_wrong"], "names": {"groups/mixed": "mixed", "groups/all_right": "all right", "groups/equal_between": "equal, in between", "groups/all_wrong": "all wrong"}, "compare": "groups/mixed", "range": [0, 1], "share": true,
    "formula": "Share of the groups whose scores differ (mixed), or are all equal: at the full score (the sum of reward.weights), at 0 or below, or in between. From the scores in groups.jsonl; frac_reward_zero_std is 1 \u2212 mixed.",
    "healthy": "Mixed stays well above 0: only mixed groups have a gradient. All right growing means the prompts are mastered; all wrong, that they are out of reach."
  },
  {
    "id": "length", "title": "Length", "lines": ["completions/mean_length"], "band": ["completions/length_p10", "completions/length_p90"], "names": {"completions/mean_length": "mean"},
    "formula": "Tokens per completion, stop token included. Band: from the 10th to the 90th percentile.",
    "healthy": "Follows the reward. Growth without reward is a warning, and so is a collapse to nothing."
  },
  {
    "id": "truncated", "title": "Truncated", "lines": ["completions/clipped_ratio"], "range": [0, 1], "share": true, "names": {"completions/clipped_ratio": "cut at the limit"},
    "formula": "Share of the completions that reached sampling.max_tokens without ending.",
    "healthy": "Low, and not rising. 1 where sampling.ignore_eos is on."
  },
  {
    "id": "entropy", "title": "Entropy", "lines": ["entropy"], "names": {"entropy": "nats"},
    "formula": "Mean entropy of the policy\u2019s next-token distribution over the tokens that count, in nats.",
    "healthy": "Falls slowly and levels out above 0. A plunge is mode collapse: the policy stops trying things."
  },
  {
    "id": "kl", "title": "KL to the reference", "lines": ["kl", "kl_k3"], "compare": "kl", "names": {"kl": "k1", "kl_k3": "k3"},
    "formula": "d = log \u03c0 \u2212 log \u03c0_ref at sampled tokens. k1: mean of d. k3: mean of exp(\u2212d) \u2212 1 + d.",
    "healthy": "Grows slowly. k1 may dip below 0 for a step, k3 never does. Needs algo.kl_coef above 0."
  },
  {
    "id": "proof", "title": "Proof of the sampler", "lines": ["sampling/mismatch", "eval_sampling/mismatch"], "names": {"sampling/mismatch": "step", "eval_sampling/mismatch": "held-out"}, "log": true, "compare": "sampling/mismatch",
    "formula": "Mean |log \u03c0_trainer \u2212 log \u03c0_sampler| of tokens on the weights that sampled them, in nats.",
    "healthy": "Level. In float32 below 1e\u22124, with the local engine and with vLLM on a CPU; more where sampler and trainer round otherwise, as in bfloat16. Above engine.max_mismatch the run stops."
  },
  {
    "id": "mismatch", "title": "Sampler and trainer", "lines": ["sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"], "names": {"sampling/sampling_logp_difference/mean": "mean", "sampling/sampling_logp_difference/max": "largest"}, "log": true, "compare": "sampling/sampling_logp_difference/mean",
    "formula": "|log \u03c0_old \u2212 log \u03c0_sampler| at sampled tokens, in nats: how far what sampled is from what is trained. With engine.ahead that is mostly the age of the weights that sampled.",
    "healthy": "The mean as low as the proof of the sampler; with engine.ahead higher, and level. What is far off is weighed down by algo.correction."
  },
  {
    "id": "clip", "title": "Clipped tokens", "lines": ["clip_ratio/low_mean", "clip_ratio/high_mean"], "share": true, "compare": "clip_ratio/region_mean", "names": {"clip_ratio/low_mean": "low", "clip_ratio/high_mean": "high"},
    "formula": "Share of tokens whose objective has no gradient though they have an advantage: pushed down far enough (low), up far enough (high).",
    "healthy": "0 with one update per rollout; a few percent with more."
  },
  {
    "id": "gradient", "title": "Gradient norm", "lines": ["grad_norm"], "names": {"grad_norm": "norm"},
    "formula": "Norm of the gradient before clipping, mean of the step\u2019s updates.",
    "healthy": "Of one size throughout. 0: nothing to learn from. Spikes: look at that step\u2019s rollouts."
  },
  {
    "id": "rate", "title": "Learning rate", "lines": ["learning_rate"], "names": {"learning_rate": "rate"},
    "formula": "Of the step\u2019s last update, by optim.schedule and warm-up.",
    "healthy": "As planned. A gap is a step without an update."
  },
  {
    "id": "time", "title": "Time per phase", "stack": ["seconds/*"], "unit": "s", "compare": "seconds/sample",
    "formula": "Seconds of each phase of the step, from timings.jsonl.",
    "healthy": "Even. A phase that grows from step to step is what slows the run down."
  },
  {
    "id": "speed", "title": "Tokens per second", "lines": ["tokens_per_second"], "names": {"tokens_per_second": "tokens/s"},
    "formula": "Completion tokens of the step over the seconds of sampling, scoring and the update.",
    "healthy": "Even, or rising as completions get longer."
  },
  {
    "id": "loss", "title": "Loss", "lines": ["loss"],
    "formula": "Mean of the updates\u2019 losses.",
    "healthy": "Says nothing about progress: at a first update with sequence weights it is 0."
  }
];

/** The keys of a pattern that these columns have: `*` stands for anything. */
export function keysOf(patterns, columns) {
  const keys = Object.keys(columns);
  return (patterns || []).flatMap((pattern) => {
    if (!pattern.includes("*")) return columns[pattern] ? [pattern] : [];
    const [before, after] = pattern.split("*");
    return keys.filter((key) => key.startsWith(before) && key.endsWith(after) && key.length > before.length + after.length);
  });
}

/** What a key is called in a chart: by the panel, or what its pattern stands for. */
export function nameOf(panel, key) {
  if (panel.names && panel.names[key]) return panel.names[key];
  for (const pattern of [...(panel.lines || []), ...(panel.stack || [])]) {
    const [before, after] = pattern.split("*");
    if (after !== undefined && key.startsWith(before) && key.endsWith(after)) return key.slice(before.length, key.length - after.length);
  }
  return key;
}

/** Panels for keys that no panel has: a run's own metrics, or those of another trainer. */
export function panelFor(key) {
  return { id: `key ${key}`, title: key, lines: [key], formula: "As the run logged it.", healthy: "", own: true };
}

/** The keys of these columns that no panel shows. */
export function otherKeys(columns) {
  const shown = new Set(["step", "reward_std", "eval_reward/low", "eval_reward/high", "completions/length_p10", "completions/length_p90"]);
  for (const panel of PANELS) for (const key of keysOf([...(panel.lines || []), ...(panel.stack || [])], columns)) shown.add(key);
  return Object.keys(columns).filter((key) => !shown.has(key)).sort();
}
