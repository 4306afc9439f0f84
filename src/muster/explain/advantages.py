"""How the rewards of a group become advantages, under each choice.

Axes: P groups, G rollouts of a group.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from muster.algo.advantages import ADVANTAGES, COMBINES, Advantage
from muster.algo.build import options
from muster.algo.filters import has_signal
from muster.errors import ConfigError
from muster.pictures import Block, Chart, Curve, Picture, Table
from muster.stats import chance_of_no_signal

GROUPS = ("1,0,0,0", "1,0,0,1", "1,1,1,1", "0.1,0.5,0.9,0.5")
ABSENT = "-"
"""A rollout that abstained, or failed."""
MAX_ROLLOUTS = 1024
SIZES = (2, 4, 8, 16)
_LEAST_LADDER = 8
"""Rollouts of the group whose successes are counted up."""
_OF_GROUP = ("zscore", "center", "leave_one_out")
"""Choices that look at one group alone."""


def explain_advantages(
    groups: Sequence[str] = GROUPS, eps: float | None = None, second: Sequence[str] = ()
) -> Picture:
    """The picture for groups given as `1,0,0,0.5`; `eps` replaces the choices' own.

    `second` is another reward of the same rollouts: the picture then shows both ways of combining them.
    """
    rewards = parse_groups(groups)
    more = _second_reward(second, rewards)
    if eps is not None and not (math.isfinite(eps) and eps >= 0):
        raise ConfigError(f"--eps is {eps}; allowed: a number, finite and not negative.")
    choices = {name: _with_eps(choice, eps) for name, choice in ADVANTAGES.items()}
    found = {name: choice(rewards) for name, choice in choices.items()}
    signal = has_signal(found["center"]).tolist()
    width = rewards.shape[1]
    return Picture(
        name="advantages",
        title="From the rewards of a group to advantages",
        blocks=(
            "An advantage says how much better than its group a rollout was: its tokens are pushed up or "
            "down by it. Only the differences within a group count, so the advantages of a group add up to "
            "0, and adding a constant to all its rewards changes nothing.",
            *(
                block
                for number, row in enumerate(rewards)
                for block in _group_blocks(number, row, {n: a[number] for n, a in found.items()}, signal)
            ),
            "zscore divides by the group's own standard deviation (G - 1): a rare success gets a large "
            "advantage. center does not divide. leave_one_out compares with the mean of the others. "
            "batch_scaled and batch_whitened divide by a deviation over all groups above, so a group's "
            "advantages depend on the groups beside it.",
            *(_combined_blocks(rewards, more, choices["zscore"]) if more is not None else ()),
            _by_successes(max(width, _LEAST_LADDER), choices),
            _chance_of_silence(),
        ),
        numbers={
            "rewards": rewards.tolist(),
            "has_signal": signal,
            "advantages": {name: values.tolist() for name, values in found.items()},
            "combined": {}
            if more is None
            else {
                name: values.tolist() for name, values in _combined(rewards, more, choices["zscore"]).items()
            },
        },
    )


def parse_groups(groups: Sequence[str]) -> Float[Tensor, "P G"]:
    """Rewards as numbers; `-` is an absent rollout, and so is what a shorter group lacks."""
    if not groups:
        raise ConfigError("--rewards names no group. Give one as --rewards 1,0,0,0.5.")
    rows = [[_reward(text, group) for text in group.split(",")] for group in groups]
    width = max(map(len, rows))
    for row, group in zip(rows, groups, strict=True):
        if not 2 <= len(row) <= MAX_ROLLOUTS:
            raise ConfigError(
                f"--rewards {group!r} has {len(row)} rollouts; a group has 2 to {MAX_ROLLOUTS}, since they "
                "are compared with each other. Give it as 1,0,0,0.5."
            )
    padded = [[*row, *[math.nan] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.float64)


def _reward(text: str, group: str) -> float:
    text = text.strip()
    if text == ABSENT:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(
            f"--rewards {group!r} holds {text!r}, which is no finite number. Give numbers with commas "
            f"between them, {ABSENT!r} for a rollout without a score, as in 1,0,{ABSENT},0.5."
        )
    return value


def _with_eps(choice: Advantage, eps: float | None) -> Advantage:
    given = {} if eps is None or "eps" not in options(choice) else {"eps": eps}
    return partial(choice, **given) if given else choice


def _group_blocks(
    number: int, rewards: Tensor, advantages: dict[str, Tensor], signal: Sequence[bool]
) -> list[Block]:
    """A group's table, with a word on what is odd about it."""
    present = rewards.isfinite()
    columns = tuple(f"rollout {place + 1}" for place in range(len(rewards)))
    blocks: list[Block] = [
        Table(
            title=f"group {number + 1}",
            columns=("", *columns),
            rows=(
                ("reward", *_or_none(rewards)),
                *((name, *values.tolist()) for name, values in advantages.items()),
            ),
        )
    ]
    if not signal[number]:
        few = "its one reward is compared with nothing" if int(present.sum()) < 2 else "all rewards are equal"
        blocks.append(
            f"Group {number + 1} teaches nothing: {few}, so every advantage is exactly 0. It is not sent "
            "through the update, yet it counts in the divisors."
        )
    return blocks


def _second_reward(second: Sequence[str], rewards: Tensor) -> Tensor | None:
    """The other reward [P G] of the same rollouts; None without one."""
    if not second:
        return None
    values = parse_groups(second)
    if values.shape != rewards.shape:
        raise ConfigError(
            f"--second has {values.shape[0]} groups of up to {values.shape[1]} rollouts, --rewards "
            f"{rewards.shape[0]} of up to {rewards.shape[1]}. Give each rollout both, in the same order."
        )
    return values


def _combined(rewards: Tensor, more: Tensor, advantage: Advantage) -> dict[str, Tensor]:
    """The advantages [P G] of both rewards together, each of weight 1, by the name of the way."""
    parts, weights = torch.stack([rewards, more]), torch.ones(2, dtype=torch.float64)
    return {name: combine(parts, weights, advantage) for name, combine in COMBINES.items()}


def _combined_blocks(rewards: Tensor, more: Tensor, advantage: Advantage) -> list[Block]:
    """Both ways from several rewards to one advantage."""
    found = _combined(rewards, more, advantage)
    columns = tuple(f"rollout {place + 1}" for place in range(rewards.shape[1]))
    tables = [
        Table(
            title=f"group {number + 1} with a second reward, by zscore",
            columns=("", *columns),
            rows=(
                ("reward", *_or_none(rewards[number])),
                ("second reward", *_or_none(more[number])),
                *((name, *values[number].tolist()) for name, values in found.items()),
            ),
        )
        for number in range(len(rewards))
    ]
    return [
        *tables,
        "sum_then_normalize takes the advantage of the sum: the reward with the larger spread decides. "
        "normalize_then_sum takes the advantage of each first, so both have a say, and then divides by the "
        "deviation over all groups.",
    ]


def _or_none(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _by_successes(size: int, choices: dict[str, Advantage]) -> Chart:
    """The advantage of one success as successes become common, each group alone."""
    counts = range(1, size)
    ladder = torch.tensor(
        [[1.0] * count + [0.0] * (size - count) for count in counts], dtype=torch.float64
    ).reshape(-1, size)
    curves = []
    for name in _OF_GROUP:
        values = choices[name](ladder)
        shares = tuple(count / size for count in counts)
        curves.append(Curve(name=f"{name}, reward 1", x=shares, y=tuple(values[:, 0].tolist())))
        curves.append(Curve(name=f"{name}, reward 0", x=shares, y=tuple(values[:, -1].tolist())))
    return Chart(
        title=f"advantage of a success and of a failure, in a group of {size}",
        x_label="share of the group that succeeded",
        y_label="advantage",
        curves=tuple(curves),
    )


def _chance_of_silence() -> Chart:
    rates = tuple(at / 50 for at in range(51))
    return Chart(
        title="chance that all rewards of a group are equal, and it teaches nothing",
        x_label="chance that a rollout succeeds",
        y_label="chance of no signal",
        curves=tuple(
            Curve(
                name=f"group of {size}", x=rates, y=tuple(chance_of_no_signal(rate, size) for rate in rates)
            )
            for size in SIZES
        ),
    )
