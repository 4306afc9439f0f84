"""What stands in the way beside what the groups show: memory, stop tokens, slow rewards, long prompts."""

from collections.abc import Iterator, Mapping

from muster.config import Config
from muster.engines.base import Sampling
from muster.findings import Finding, Seen
from muster.preflight.costs import Costs
from muster.preflight.template import TurnEnd
from muster.rewards import CallTimes

SLOW_SHARE = 0.3
"""Of a step; rewards that take more of it are a finding."""
SLOW_S = 1.0
"""Seconds of a step; scoring that takes less is none."""
NEAR_LIMIT = 0.5
"""Of the time limit of a call."""
MANY_DROPPED = 0.2
"""Of the prompts."""
_GB = 1e9


def about_costs(costs: Costs, config: Config) -> Iterator[Finding]:
    """Memory that there isn't."""
    if costs.peak_bytes is None or costs.peak_bytes <= costs.available_bytes:
        return
    lora = "" if config.model.lora else "train an adapter ([model.lora]); "
    again = "" if config.model.gradient_checkpointing else "model.gradient_checkpointing = true; "
    yield Finding(
        name="memory",
        says=f"the run needs about {costs.peak_bytes / _GB:.1f} GB, and there are "
        f"{costs.available_bytes / _GB:.1f} GB",
        advice=f"{lora}{again}or lower run.budget_tokens, so that an update takes smaller parts",
        setting="model.lora" if lora else "run.budget_tokens",
        blocks=True,
    )


def about_turns(end: TurnEnd | None, sampling: Sampling, seen: Seen) -> Iterator[Finding]:
    """A template whose end of turn is none for the sampler."""
    if end is None or end.stops or sampling.ignore_eos:
        return
    what = "nothing" if end.token is None else f"{end.token!r}, which is no stop token"
    advice = (
        "Take a model whose template ends turns, or name a text that ends its answers in sampling.stop"
        if end.token is None
        else f"Set sampling.stop = [{end.token!r}]"
    )
    yield Finding(
        name="no stop token",
        says=f"the chat template ends an answer with {what}, so completions that are over go on: "
        f"{100 * seen.lengths.truncated_share:.0f} % reached their limit",
        advice=advice,
        setting="sampling.stop",
        value=end.token,
    )


def about_rewards(times: Mapping[str, CallTimes], costs: Costs, config: Config) -> Iterator[Finding]:
    """Scoring that holds up the run, and calls close to their limit."""
    limit_s = config.reward.time_limit_s
    timed = {name: calls for name, calls in times.items() if name not in config.reward.in_process}
    for name, calls in timed.items():
        if calls.slowest_s > NEAR_LIMIT * limit_s:
            yield Finding(
                name="near the time limit",
                says=f"the slowest call of {name} took {calls.slowest_s:.1f} s of the {limit_s:g} s allowed",
                advice=f"Make it faster, or reward.time_limit_s = {2 * limit_s:g}",
                setting="reward.time_limit_s",
                value=2 * limit_s,
            )
    if costs.score_s > max(SLOW_S, SLOW_SHARE * costs.step_s):
        slowest = max(times, key=lambda name: times[name].total_s)
        yield Finding(
            name="slow reward",
            says=f"scoring takes {costs.score_s:.1f} s of the {costs.step_s:.1f} s of a step, most of it "
            f"{slowest}",
            advice="Make the reward faster, or raise reward.workers where there are more processors",
            setting="reward.workers",
        )


def about_prompts(num_fitting: int, num_too_long: int, limit: int) -> Iterator[Finding]:
    """Data that is left out."""
    total = num_fitting + num_too_long
    if num_too_long <= MANY_DROPPED * total:
        return
    yield Finding(
        name="prompts left out",
        says=f"{num_too_long} of {total} prompts are longer than {limit} tokens and left out",
        advice="Raise model.max_tokens, or data.max_prompt_tokens where it is set",
        setting="model.max_tokens",
    )
