"""Runs small enough to drive to their end in a second: a tiny model, a few prompts, a reward in one line."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from muster.algo.advantages import sum_then_normalize
from muster.algo.recipes import GRPO, Recipe
from muster.batch import Batch, Row, collate
from muster.config import Config, from_mapping
from muster.engines.base import Engine, Sampling
from muster.engines.local import LocalEngine
from muster.evaluate import Evaluation
from muster.gather import Collector, Item
from muster.judge import Judge
from muster.policy import Policy
from muster.records import (
    Completion,
    EvalReport,
    Group,
    Prompt,
    Rollout,
    Sample,
    Score,
    StepReport,
    StreamKey,
)
from muster.rewards import InlineGrader, load_rewards
from muster.runstate import Plan, Run
from muster.update import Budget, Objective
from tiny import ids_of, tiny_policy
from toy_rewards import low_bytes

RewardFunction = Callable[..., object]


def toy_run(
    policy: Policy | None = None,
    reward: RewardFunction | Sequence[RewardFunction] = low_bytes,
    *,
    recipe: Recipe = GRPO,
    engine: Engine | None = None,
    lr: float = 1e-3,
    sampling: Mapping[str, object] | None = None,
    objective: Mapping[str, float] | None = None,
    judge: Mapping[str, object] | None = None,
    num_items: int = 5,
    num_held_out: int = 0,
    budget_tokens: int = 512,
    **plan: object,
) -> Run:
    """A run of 3 steps of 2 prompts x 4 completions x 4 tokens, unless it is asked for otherwise."""
    policy = policy or tiny_policy()
    rewards = load_rewards([reward] if callable(reward) else list(reward), None, {})
    numbers = Plan(**{"seed": 1, "num_steps": 3, "prompts_per_step": 2, **plan})
    settings = Sampling(**{"group_size": 4, "max_tokens": 4, "stop_ids": frozenset({2}), **(sampling or {})})
    terms = {"kl_coef": 0.0, **(objective or {})}
    params = [param for _, param in policy.trainable()]
    return Run(
        policy=policy,
        optimizer=torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.99), weight_decay=0.1),
        collector=Collector(
            engine=engine or LocalEngine(policy, max_rows=64),
            grader=InlineGrader(rewards),
            tokenizer=policy.tokenizer,
            num_steps=numbers.num_steps,
            end_ids=frozenset({2}),
        ),
        items=toy_items(num_items),
        draw=lambda state, count, _: [n % num_items for n in range(state.drawn, state.drawn + count)],
        sampling=settings,
        judge=Judge(
            advantage=recipe.advantage,
            combine=sum_then_normalize,
            weights={r.name: r.weight for r in rewards},
            **(judge or {}),  # pyright: ignore[reportArgumentType]
        ),
        objective=Objective(recipe=recipe, temperature=settings.temperature, **terms),
        plan=numbers,
        rate=lambda update: lr,
        budget=Budget(tokens=budget_tokens),
        reference=policy.snapshot() if terms["kl_coef"] or numbers.kl_in_reward else None,
        evaluation=_evaluation(num_held_out, settings, numbers) if num_held_out else None,
    )


def _evaluation(num_held_out: int, sampling: Sampling, plan: Plan) -> Evaluation:
    return Evaluation(
        items=toy_items(num_held_out, "held out"),
        sampling=replace(sampling, group_size=2),
        seed=plan.seed,
        every=1,
        at_start=True,
        num_steps=plan.num_steps,
    )


def number(report: StepReport, name: str) -> float:
    """A metric that is there."""
    value = report.metrics[name]
    assert value is not None, name
    return value


def held_out(report: StepReport) -> EvalReport:
    """The evaluation of a step that has one."""
    assert report.eval is not None
    return report.eval


def toy_items(count: int, stem: str = "question") -> list[Item]:
    """Prompts of uneven length."""
    texts = [f"{stem} {'x' * number}" for number in range(count)]
    return [Item(Sample(id=str(number), text=text), ids_of(text), text) for number, text in enumerate(texts)]


def toy_config(folder: Path, **sections: Mapping[str, object]) -> Config:
    """A run of 4 steps over 5 prompts on a tiny model saved in the folder, in `folder/runs/toy`."""
    write_rows(folder / "train.jsonl", [f"question {number}" for number in range(5)])
    write_rows(folder / "held_out.jsonl", ["what now", "what then"])
    settings: dict[str, dict[str, object]] = {
        "model": {"path": str(folder / "model"), "max_tokens": 128},
        "data": {"path": str(folder / "train.jsonl")},
        "reward": {"use": ["toy_rewards:low_bytes"]},
        "sampling": {"prompts_per_step": 2, "group_size": 4, "max_tokens": 4},
        "optim": {"lr": 1e-3, "warmup": 1, "schedule": "linear"},
        "run": {"name": "toy", "dir": str(folder / "runs"), "steps": 4, "seed": 7, "budget_tokens": 256},
    }
    return from_mapping(layered(settings, sections))


def layered(
    base: Mapping[str, Mapping[str, object]], more: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    """The sections of both; where both have a value, the second's."""
    return {name: {**base.get(name, {}), **more.get(name, {})} for name in {**base, **more}}


def write_rows(path: Path, prompts: Sequence[str]) -> None:
    """A JSON-lines file of prompts."""
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts), encoding="utf-8")


def completion_of(
    ids: Sequence[int], *, truncated: bool = False, logprobs: Sequence[float] | None = None
) -> Completion:
    """A completion by hand."""
    return Completion(
        ids=tuple(ids),
        sampler_logprobs=tuple(logprobs or [-1.0] * len(ids)),
        finish_reason="length" if truncated else "stop",
        version=0,
    )


def group_of(
    scores: Sequence[Score | float | None],
    *,
    completions: Sequence[Completion] | None = None,
    name: str = "r",
    slot: int = 0,
) -> Group:
    """A group by hand: numbers are scores of one reward `r`, None abstains."""
    made = [
        score if isinstance(score, Score) else Score(value=score, parts={name: score}) for score in scores
    ]
    sampled = completions or [completion_of([5, 6])] * len(made)
    return Group(
        id=f"1-{slot}-0",
        sample=Sample(id=str(slot), text="p"),
        prompt=Prompt(ids=(3, 4), key=StreamKey(0, 1, slot, 0)),
        prompt_text="p",
        rollouts=tuple(
            Rollout(completion=completion, text="", score=score)
            for completion, score in zip(sampled, made, strict=True)
        ),
    )


def toy_batch(policy: Policy, *, seed: int = 0, num_prompts: int = 3, group_size: int = 3) -> Batch:
    """Random completions of uneven length, with random advantages, scored by the policy itself."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(3, 259, (count,), generator=generator).tolist()

    prompts = [tuple(draw(3 + 2 * number)) for number in range(num_prompts)]
    advantages = torch.randn(num_prompts * group_size, generator=generator).tolist()
    rows = [
        Row(number // group_size, completion_of(draw(1 + (5 * number) % 7)), advantages[number])
        for number in range(num_prompts * group_size)
    ]
    batch = collate(prompts, rows)
    with torch.no_grad():
        scores = policy.score(batch, temperature=1.0)
    return replace(batch, sampler_logprobs=scores.logprobs.float())


def weights_of(run: Run) -> dict[str, torch.Tensor]:
    """A copy of the weights that are trained."""
    return run.policy.snapshot()


def same(first: Mapping[str, torch.Tensor] | None, second: Mapping[str, torch.Tensor] | None) -> bool:
    """Both are there, and equal to the last bit."""
    assert first is not None
    assert second is not None
    return all(torch.equal(first[name], second[name]) for name in first)


def config_for(place: Path, folder: Path, **sections: Mapping[str, object]) -> Config:
    """The toy configuration with its runs in `folder`, and held-out data where it evaluates."""
    merged = {name: dict(values) for name, values in sections.items()}
    if "eval" in merged:
        merged["data"] = {"eval_path": str(place / "held_out.jsonl"), **merged.get("data", {})}
    merged["run"] = {"dir": str(folder), **merged.get("run", {})}
    return toy_config(place, **merged)


def content(folder: Path) -> dict[str, bytes]:
    """What two equal runs leave equal, byte for byte."""
    files = [folder / "metrics.jsonl", folder / "index"]
    for pattern in ("rollouts/*", "eval/*", "final/*.safetensors", "checkpoints/*/*"):
        files += folder.glob(pattern)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def only_at_step(step, reward):
    def at_step(completion, completion_ids, trainer_state):
        return reward(completion, completion_ids) if trainer_state.global_step == step else 1.0

    return at_step


class Lying:
    """An engine whose logprobs are off by some nats."""

    def __init__(self, inner, offset):
        self.inner, self.offset = inner, offset

    def generate(self, prompts, sampling):
        return [
            [replace(c, sampler_logprobs=tuple(x + self.offset for x in c.sampler_logprobs)) for c in group]
            for group in self.inner.generate(prompts, sampling)
        ]

    def load_weights(self, weights, version):
        self.inner.load_weights(weights, version)

    def close(self):
        self.inner.close()
