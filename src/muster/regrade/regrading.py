"""From a run's folder and what is asked of it to the regrade: step by step, and never a model."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from muster.assemble import build_recipe, make_judge, make_plan, start_grader, weights_of
from muster.config import Config
from muster.errors import CheckpointError, ConfigError, DataError
from muster.regrade.asking import Asked, Sides, sides_of
from muster.regrade.coefficients import Side
from muster.regrade.comparing import Products, added, correlation
from muster.regrade.steps import Scoring, StepResult, parts_of, regrade_step
from muster.regrade.stored import StoredStep, find_tokenizer, read_step
from muster.rewards import check_columns
from muster.store import Changes, Compared, Regrade, Reproduced, read_metrics, rollout_steps
from muster.update import Objective

NUM_CHANGED = 20
"""Rollouts that are listed as those that changed most."""
NUM_REASONS = 5
"""Reasons of failed rewards that are listed."""

MANY_STEPS = 200
"""From so many on it is said how far a regrade is."""

Say = Callable[[str], None]


class Regraded(NamedTuple):
    """What a regrade found."""

    regrade: Regrade
    rollouts: list[Changes]
    """Every rollout, in order."""


class _Steps(NamedTuple):
    """Which steps there are to regrade."""

    there: list[int]
    missing: list[int]
    """Taken by the run, and their rollouts are not in the folder."""


def regrade(folder: Path, asked: Asked, *, say: Say) -> Regraded:
    """The run's stored rollouts under the rewards and the recipe that are asked for.

    Steps whose rollouts are damaged or were not kept are left out, by name. Raises ConfigError where what is
    asked can't be told from what was recorded, before any reward is called.
    """
    sides = sides_of(folder, asked)
    lines = {int(line["step"]): line for line in read_metrics(folder)}
    chosen = _chosen(folder, asked, [step for step, line in lines.items() if "reward" in line])
    left_out = [f"step {step}: its rollouts are not in the folder" for step in chosen.missing]
    steps = _readable(folder, chosen.there, left_out)
    first = next(steps, None)
    if first is None:
        raise CheckpointError(f"{folder} holds no rollouts that can be read: {'; '.join(left_out)}.")
    results: list[StepResult] = []
    with ExitStack() as stack:
        scoring = _scoring(folder, sides, first, say, stack)
        before = side_of(sides.before, _recorded_weights(sides.before, first))
        after = side_of(sides.after, dict(scoring.weights))
        for step in _told(chain([first], steps), len(chosen.there), say):
            try:
                results.append(regrade_step(step, before, after, scoring, lines.get(step.number, {})))
            except DataError as error:
                left_out.append(f"step {step.number}: {error}")
    if not results:
        raise ConfigError(f"no step of {folder} can be regraded: {'; '.join(left_out)}.")
    return _regraded(sides, results, left_out)


def side_of(config: Config, weights: dict[str, float]) -> Side:
    """How a configuration turns scores into coefficients; `weights` by reward name."""
    recipe = build_recipe(config)
    return Side(
        judge=make_judge(config, recipe, weights),
        objective=Objective(
            recipe=recipe,
            temperature=config.sampling.temperature,
            kl_coef=config.algo.kl_coef if config.algo.kl_in == "loss" else 0.0,
            entropy_coef=config.algo.entropy_coef,
        ),
        plan=make_plan(config, recipe, config.run.steps or 0),
        limit=config.sampling.max_tokens,
    )


def _chosen(folder: Path, asked: Asked, taken: Sequence[int]) -> _Steps:
    def wanted(step: int) -> bool:
        return asked.steps is None or any(step in some for some in asked.steps)

    there = rollout_steps(folder)
    chosen = [step for step in there if wanted(step)]
    if not chosen:
        held = f"{there[0]} to {there[-1]}" if there else "none yet"
        raise ConfigError(f"{folder} holds no rollouts of the steps asked for; steps there: {held}.")
    return _Steps(chosen, [step for step in taken if wanted(step) and step not in set(there)])


def _readable(folder: Path, numbers: Iterable[int], left_out: list[str]) -> Iterator[StoredStep]:
    """The steps that can be read; of the others, why not."""
    for number in numbers:
        try:
            yield read_step(folder, number)
        except (CheckpointError, ConfigError) as error:
            left_out.append(f"step {number}: {error}")


def _told(steps: Iterable[StoredStep], count: int, say: Say) -> Iterator[StoredStep]:
    """The steps; of many, how far it is after each tenth."""
    tenth = max(1, count // 10)
    for place, step in enumerate(steps):
        if place and count >= MANY_STEPS and place % tenth == 0:
            say(f"{place:,} of {count:,} steps")
        yield step


def _scoring(folder: Path, sides: Sides, first: StoredStep, say: Say, stack: ExitStack) -> Scoring:
    """Where the scores after come from; rewards are started and checked before one is called."""
    after = sides.after
    if not sides.is_graded:
        weights = _recorded_weights(after, first)
        changes = weights != _recorded_weights(sides.before, first)
        return Scoring(None, weights, changes, None, after.run.steps)
    grader = stack.enter_context(closing(start_grader(after, say)))
    check_columns(grader.rewards, first.groups[0].sample.columns, f"the rollouts in {folder}")
    tokenizer = find_tokenizer(folder, grader.rewards)
    return Scoring(grader, weights_of(grader.rewards), False, tokenizer, after.run.steps)


def _recorded_weights(config: Config, first: StoredStep) -> dict[str, float]:
    """The configuration's weights by the names under which the rewards' parts are recorded."""
    names = parts_of(first)
    weights = config.reward.weights or (1.0,) * len(names)
    if len(weights) != len(names):
        raise ConfigError(
            f"reward.weights has {len(weights)} numbers, but {len(names)} rewards are recorded: "
            f"{', '.join(names)}. Give one each."
        )
    return dict(zip(names, weights, strict=True))


def _regraded(sides: Sides, results: Sequence[StepResult], left_out: Sequence[str]) -> Regraded:
    changes = [one for result in results for one in result.changes]
    both = sum((result.products for result in results), Products())
    reproduced = Reproduced(
        advantages=sum(result.same_advantages for result in results),
        of_advantages=sum(result.of_advantages for result in results),
        clip_steps=sum(result.same_clip is True for result in results),
        of_clip_steps=sum(result.same_clip is not None for result in results),
    )
    whole = Compared(
        step=None,
        rollouts=len(changes),
        groups=sum(result.compared.groups for result in results),
        before=added([result.compared.before for result in results]),
        after=added([result.compared.after for result in results]),
        advantage_correlation=correlation([pair for result in results for pair in result.pairs]),
        agreement=both.agreement(),
    )
    reasons: Counter[str] = sum((result.reasons for result in results), Counter())
    regrade = Regrade(
        name=sides.name,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=sides.settings,
        is_graded=sides.is_graded,
        whole=whole,
        steps=tuple(result.compared for result in results),
        changed_most=_changed_most(changes),
        is_unchanged=both.equal and not any(map(_is_changed, changes)),
        reproduced=reproduced,
        left_out=tuple(left_out),
        notes=(*sides.notes, *_notes(sides, whole, reproduced)),
        failures=dict(reasons.most_common(NUM_REASONS)),
    )
    return Regraded(regrade, changes)


def _is_changed(one: Changes) -> bool:
    return one.score_before != one.score_after or one.advantage_before != one.advantage_after


def _changed_most(changes: Sequence[Changes]) -> tuple[Changes, ...]:
    """By advantage, then by score; one that lost its score comes before one whose score changed."""

    def size(one: Changes) -> tuple[float, float]:
        scores = (one.score_before, one.score_after)
        lost = float("inf") if None in scores and scores != (None, None) else 0.0
        score = lost or abs((one.score_after or 0.0) - (one.score_before or 0.0))
        return abs(one.advantage_after - one.advantage_before), score

    return tuple(sorted(filter(_is_changed, changes), key=size, reverse=True)[:NUM_CHANGED])


def _notes(sides: Sides, whole: Compared, reproduced: Reproduced) -> Iterator[str]:
    """What limits the numbers."""
    algo, agreement = sides.before.algo, whole.agreement
    if agreement.unknown:
        yield (
            f"{agreement.unknown:,} of {agreement.unknown + agreement.tokens:,} tokens have no coefficient "
            "after: the run did not send their rollouts through its update (their groups had no signal, or "
            "they no score), so the trainer's logprobs of them were not recorded. The agreement is that of "
            "the other tokens."
        )
    if algo.passes > 1:
        yield (
            f"Coefficients and clip shares are those of the last of the run's {algo.passes} passes: logprobs "
            "of the earlier ones are not stored."
        )
    if algo.entropy_coef:
        yield "The entropy bonus acts on the whole distribution, not through the sampled token: left out."
    if reproduced.advantages < reproduced.of_advantages:
        yield (
            f"{reproduced.of_advantages - reproduced.advantages:,} of {reproduced.of_advantages:,} recorded "
            "advantages are not what the run's config.toml gives: it was resumed under other settings, "
            "or the file was changed. Before is what was recorded."
        )
    if reproduced.clip_steps < reproduced.of_clip_steps:
        yield (
            f"The recorded clip shares of {reproduced.of_clip_steps - reproduced.clip_steps:,} of "
            f"{reproduced.of_clip_steps:,} steps do not come out of the stored logprobs, which are not those "
            "of the run, or were rounded. Coefficients and clip shares are of what is stored."
        )
