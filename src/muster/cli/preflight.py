"""A preflight as a person reads it on a terminal, and as plain data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from muster.cli.text import duration, escape_text, number
from muster.findings import SAMPLING_LIMIT, PartSeen, Seen, Setup

if TYPE_CHECKING:
    # Only the types: the command line does not wait for the models behind them.
    from muster.preflight import Costs, Preflight, TurnEnd
    from muster.rewards import CallTimes

_WIDTH = 14
_BAR = 30
_GB = 1e9
TIME_ERROR, MEMORY_ERROR = 0.25, 0.20
"""What the estimates were within where they were compared with runs (docs/verbs/check.md)."""


def preflight_lines(found: "Preflight") -> Iterator[str]:
    """The whole report, a line at a time."""
    seen, prompts = found.seen, found.prompts
    yield f"{seen.num_groups} prompts, {seen.num_rollouts} rollouts, as the run's first steps would draw them"
    yield ""
    yield from histogram(seen)
    yield from signal_lines(seen)
    yield from length_lines(seen, found.setup, found.turn_end)
    for name, part in seen.parts.items():
        yield _row("reward", reward_line(name, part, found.times.get(name)))
    for reason, count in list(seen.reasons.items())[:3]:
        yield _row("failed", f"{count} times: {escape_text(reason)}")
    left_out = f"{prompts.num_too_long} too long and left out" if prompts.num_too_long else "none is longer"
    yield _row(
        "prompts",
        f"{prompts.least} to {prompts.greatest} tokens, median {prompts.median}; "
        f"limit {prompts.limit}: {left_out}",
    )
    yield from cost_lines(found.costs)
    yield ""
    yield from advice_lines(found)


def histogram(seen: Seen) -> Iterator[str]:
    """How many prompts have which share of full rewards; where none is full, which mean reward."""
    if not seen.pass_rates:
        return
    mean = sum(seen.means) / len(seen.means)
    by_prompt = f"by prompt {number(min(seen.means))} to {number(max(seen.means))}"
    if any(seen.pass_rates):
        yield f"prompts by pass rate, the share of their rollouts with the full reward, {number(seen.full)}:"
        rates = seen.pass_rates
    else:
        span = seen.full - seen.lowest
        yield (
            f"no rollout has the full reward, {number(seen.full)}; prompts by mean reward, "
            f"{number(seen.lowest)} as 0 % and {number(seen.full)} as 100 %:"
        )
        rates = [(value - seen.lowest) / span if span else 0.0 for value in seen.means]
    for name, count in _binned(rates).items():
        bar = "█" * round(_BAR * count / len(rates))
        yield f"  {name:<{_WIDTH - 2}}{count:>4} {bar}".rstrip()
    yield _row("mean reward", f"{number(mean)}; {by_prompt}")


def _binned(rates: Sequence[float]) -> dict[str, int]:
    return {
        "0 %": sum(rate <= 0 for rate in rates),
        "to 25 %": sum(0 < rate <= 0.25 for rate in rates),
        "to 50 %": sum(0.25 < rate <= 0.5 for rate in rates),
        "to 75 %": sum(0.5 < rate <= 0.75 for rate in rates),
        "below 100 %": sum(0.75 < rate < 1 for rate in rates),
        "100 %": sum(rate >= 1 for rate in rates),
    }


def signal_lines(seen: Seen) -> Iterator[str]:
    """Groups without signal: now, and as expected for other group sizes."""
    if not seen.num_judged:
        return
    other = seen.num_equal - seen.num_right - seen.num_wrong
    share = _percent(seen.num_equal / seen.num_judged)
    kinds = f"{seen.num_right} all right, {seen.num_wrong} all wrong, {other} all equal in between"
    yield _row("no signal", f"{share} of the groups: {kinds}")
    expected = ", ".join(f"{size}: {_percent(chance)}" for size, chance in seen.expected.items())
    yield _row("", f"expected by group size: {expected}")


def length_lines(seen: Seen, setup: Setup, end: "TurnEnd | None") -> Iterator[str]:
    """Lengths of completions, and how they end."""
    if setup.has_fixed_length:
        yield _row("length", f"{setup.max_tokens} tokens, all of them: sampling.ignore_eos is on")
        return
    lengths = seen.lengths
    mean, cut = f"{number(lengths.mean)} tokens on average", f"{_percent(lengths.truncated_share)} cut"
    if lengths.cut_by.keys() <= {SAMPLING_LIMIT}:
        keeps = f"{'' if lengths.is_known else 'at least '}{lengths.needed} tokens would keep 95 % whole"
        yield _row("length", f"{mean}; {cut} at {setup.max_tokens}; {keeps}")
    else:
        limits = ", ".join(f"{count} at {name}" for name, count in lengths.cut_by.items())
        yield _row("length", f"{mean}; {cut}: {limits}")
    if end is not None:
        token = "nothing" if end.token is None else escape_text(end.token)
        yield _row("turns", f"end with {token}, {'a' if end.stops else 'no'} stop token")


def reward_line(name: str, part: PartSeen, times: "CallTimes | None") -> str:
    """What a reward gave, at which levels, and how long its calls took."""
    text = f"{escape_text(name)}: mean {number(part.mean)}, {number(part.lowest)} to {number(part.highest)}"
    if part.levels:
        text += "; " + "  ".join(
            f"{level:g}: {_percent(count / part.num_scored)}" for level, count in part.levels.items()
        )
    if times is not None and times.num_calls:
        mean_s = times.total_s / times.num_calls
        text += f"; {1000 * mean_s:.3g} ms a call, the slowest {1000 * times.slowest_s:.3g} ms"
    return text


def cost_lines(costs: "Costs") -> Iterator[str]:
    """Time and memory of the run as configured."""
    update = "not measured" if costs.update_s is None else f"{costs.update_s:.2g}"
    yield _row(
        "time",
        f"{costs.step_s:.3g} s a step (sample {costs.sample_s:.2g}, score {costs.score_s:.2g}, "
        f"update {update}); {costs.tokens_per_s:.0f} tokens a second",
    )
    around = (
        f"{costs.num_evals} evaluations of {costs.eval_s:.2g} s, "
        f"{costs.num_saves} checkpoints of {costs.save_s:.2g} s"
    )
    yield _row(
        "", f"{duration(costs.total_s)} for {costs.num_steps} steps, {around}; give or take {TIME_ERROR:.0%}"
    )
    if costs.peak_bytes is not None:
        yield _row(
            "memory",
            f"{costs.peak_bytes / _GB:.2f} GB at its peak, give or take {MEMORY_ERROR:.0%}; "
            f"{costs.available_bytes / _GB:.1f} GB are there",
        )


def advice_lines(found: "Preflight") -> Iterator[str]:
    """What stands in the way, what to change first, and whether the run would learn."""
    for place, finding in enumerate(found.findings, start=1):
        yield f"{place}. {escape_text(finding.says)}."
        yield f"   {escape_text(finding.advice)}."
    if found.would_learn:
        yield (
            "It can learn as it is."
            if not found.findings
            else "It can learn; the list says what to change first."
        )
    else:
        names = ", ".join(finding.name for finding in found.findings if finding.blocks)
        yield f"It would not learn as it is: {names}."


def preflight_as_json(found: "Preflight") -> Mapping[str, object]:
    """The same as plain data."""
    return {
        "would_learn": found.would_learn,
        "findings": [asdict(finding) for finding in found.findings],
        "seen": asdict(found.seen),
        "prompts": found.prompts._asdict(),
        "turn_end": found.turn_end._asdict() if found.turn_end else None,
        "reward_calls": {name: asdict(times) for name, times in found.times.items()},
        "costs": asdict(found.costs),
    }


def _row(title: str, text: str) -> str:
    return f"{title:<{_WIDTH}}{text}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
