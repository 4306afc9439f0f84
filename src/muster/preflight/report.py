"""The preflight: a run's own objects, some of its groups, an update at rate 0, and what follows from them."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from muster.assemble import Materials, assemble, load_policy, prepare
from muster.config import Config
from muster.engine_setup import in_turn
from muster.engines.local import LocalEngine
from muster.engines.vllm_inside import VllmInside
from muster.errors import ConfigError
from muster.findings import Finding, Seen, Setup, find, in_order, look
from muster.loop import setup_of
from muster.preflight.costs import Costs, Measured, heaviest, predict, seconds_per_byte
from muster.preflight.obstacles import about_costs, about_prompts, about_rewards, about_turns
from muster.preflight.rehearsal import rehearse_update, sample_groups
from muster.preflight.template import TurnEnd, turn_end
from muster.rewards import CallTimes
from muster.run import Watchers, self_checked
from muster.runstate import Run

NUM_GROUPS = 16
LIMIT_S = 60.0
"""Seconds of sampling without a number of groups asked for."""


class Prompts(NamedTuple):
    """Lengths of the prompts to train on, in tokens."""

    least: int
    median: int
    greatest: int
    limit: int
    num_fitting: int
    num_too_long: int
    """Left out for their length; without `data.overlong = "drop"` the run would refuse them."""


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What a run will meet."""

    setup: Setup
    seen: Seen
    prompts: Prompts
    turn_end: TurnEnd | None
    """None for raw prompts, and where the template renders no answer."""
    times: Mapping[str, CallTimes]
    """How long the calls of each reward took, by name."""
    costs: Costs
    findings: tuple[Finding, ...]
    """What stands in the way, the most important first."""

    @property
    def would_learn(self) -> bool:
        """Nothing that was found keeps the run from learning."""
        return not any(finding.blocks for finding in self.findings)


def preflight(
    config: Config, *, num_groups: int | None = None, watchers: Watchers | None = None
) -> Preflight:
    """Samples groups of the run's first steps and says what the run will meet; nothing is trained or kept.

    Without a number, 16 groups, or as many as can be sampled in a minute. Raises as the run would where
    configuration, data, rewards or model are wrong.
    """
    if num_groups is not None and num_groups < 1:
        raise ConfigError(f"--groups is {num_groups}; allowed: at least 1 group.")
    told = watchers or Watchers()
    began = time.perf_counter()
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    told.progress("load", 0, 0)
    materials = prepare(config, told.say)
    materials = replace(materials, config=in_turn(config))
    with closing(materials):
        loading = time.perf_counter()
        policy = load_policy(config.model, materials.tokenizer, seed=config.run.seed, say=told.say)
        load_s = time.perf_counter() - loading
        run = assemble(materials, policy, told.progress)
        with closing(run.collector.engine):
            self_checked(run)
            start_s = time.perf_counter() - began
            measured = _measure(run, config, told, num_groups, start_s=start_s, load_s=load_s)
            costs = predict(run, measured, save_every=config.run.save_every)
            return _report(materials, run, measured, costs)


def _measure(
    run: Run, config: Config, told: Watchers, num_groups: int | None, *, start_s: float, load_s: float
) -> Measured:
    """The groups and the update."""
    engine = run.collector.engine
    max_rows = engine.max_rows if isinstance(engine, LocalEngine | VllmInside) else 128
    per_step = run.plan.prompts_per_step
    num_eval = run.evaluation.sampling.group_size * len(run.evaluation.items) if run.evaluation else 0
    sampled = sample_groups(
        run,
        num_groups or NUM_GROUPS,
        # As many rows as the run will ever sample side by side: more would hold more memory than it.
        num_wide=max(per_step, min(num_eval, max_rows) // run.sampling.group_size),
        limit_s=None if num_groups else LIMIT_S,
        say=told.say,
    )
    told.say(f"rehearsing an update on {min(per_step, len(sampled.groups))} groups at a learning rate of 0")
    return Measured(
        sampled=sampled,
        update=rehearse_update(run, heaviest(sampled.groups, per_step)),
        start_s=start_s,
        load_s=load_s,
        byte_s=seconds_per_byte(dict(run.policy.trainable()), Path(config.run.dir)),
        max_rows=max_rows,
    )


def _report(materials: Materials, run: Run, measured: Measured, costs: Costs) -> Preflight:
    config = materials.config
    groups = measured.sampled.groups
    setup = setup_of(run)
    seen = look(groups, setup)
    prompts = _prompts(materials)
    end = turn_end(
        groups[0].sample,
        materials.tokenizer,
        stop_ids=run.sampling.stop_ids,
        stop_strings=run.sampling.stop_strings,
        chat_template_kwargs=config.data.chat_template_kwargs,
    )
    times = materials.grader.times
    more = [
        *about_costs(costs, config),
        *about_turns(end, run.sampling, seen),
        *about_rewards(times, costs, config),
        *about_prompts(prompts.num_fitting, prompts.num_too_long, prompts.limit),
    ]
    return Preflight(
        setup=setup,
        seen=seen,
        prompts=prompts,
        turn_end=end,
        times=times,
        costs=costs,
        findings=tuple(in_order([*find(seen, setup), *more])),
    )


def _prompts(materials: Materials) -> Prompts:
    lengths = sorted(len(item.ids) for item in materials.items)
    return Prompts(
        least=lengths[0],
        median=lengths[len(lengths) // 2],
        greatest=lengths[-1],
        limit=materials.config.max_prompt_tokens,
        num_fitting=len(lengths),
        num_too_long=materials.num_too_long,
    )
