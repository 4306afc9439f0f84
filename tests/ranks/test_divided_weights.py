"""Weights, gradients and optimizer divided among ranks: the same updates as on one process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from muster import dist
from muster.algo.recipes import GRPO, Recipe
from muster.batch import count_totals
from muster.clock import Clock
from muster.config import from_mapping
from muster.errors import ConfigError, ModelError, RankError, TrainingError
from muster.policy import Policy, divide, enable_gradient_checkpointing
from muster.run import run
from muster.store import read_metrics
from muster.update import Budget, Objective, update
from ranks_of import PLAIN, assert_same_run, norms_of, on_ranks, train_on
from tiny import tiny_policy
from toy_run import config_for, toy_batch

OBJECTIVE = Objective(recipe=GRPO, temperature=1.0)
FAMILIES = ("llama", "qwen2", "gpt2", "gemma2")
"""Head and embedding tied and apart, biases, learned positions, plain rows."""


@pytest.mark.parametrize(
    ("count", "sections"),
    [
        (2, {"optim": {"lr": 1e-3, "max_grad_norm": 0.05}, "run": {"budget_tokens": 24}}),
        (
            2,
            {
                "algo": {"kl": "k3", "kl_coef": 0.1, "minibatches": 2, "passes": 2},
                "sampling": {"sync_every": 2},
            },
        ),
        (
            3,
            {
                "algo": {"gate": {"use": "top_entropy", "share": 0.5}},
                "model": {"gradient_checkpointing": True},
                "optim": {"name": "sgd", "lr": 0.1, "options": {"momentum": 0.9}},
            },
        ),
    ],
)
def test_divided_weights_learn_what_whole_ones_do(place: Path, tmp_path: Path, count: int, sections):
    settings = {"engine": PLAIN, "eval": {"every": 2, "prompts": 2}, **sections}
    list(run(config_for(place, tmp_path / "one", **settings)))
    divided = {**settings, "run": {**settings.get("run", {}), "layout": "shard"}}
    assert train_on(count, config_for(place, tmp_path / "all", **divided), tmp_path / "log") == [0] * count
    assert_same_run(tmp_path / "one" / "toy", tmp_path / "all" / "toy")


def test_a_rank_without_prompts_rollouts_or_signal_stands_by(place: Path, tmp_path: Path):
    """Three ranks, two prompts a step, of which only some teach; and micro-batches of one rollout each."""
    settings = {"reward": {"use": ["toy_rewards:every_third"]}, "engine": PLAIN}
    list(run(config_for(place, tmp_path / "one", run={"budget_tokens": 1}, **settings)))
    config = config_for(place, tmp_path / "all", run={"budget_tokens": 1, "layout": "shard"}, **settings)
    assert train_on(3, config, tmp_path / "log") == [0] * 3
    one, every = tmp_path / "one" / "toy", tmp_path / "all" / "toy"
    assert any(line["frac_reward_zero_std"] for line in read_metrics(one))
    assert norms_of(every) == pytest.approx(norms_of(one), rel=1e-4)


def stepped(policy: Policy, recipe: Recipe = GRPO) -> float:
    """The gradient's norm, once the policy has taken a clipped step by uneven micro-batches."""
    batch = toy_batch(policy, num_prompts=3, group_size=3)
    optimizer = torch.optim.SGD([param for _, param in policy.trainable()], lr=1.0)
    totals, budget = count_totals(batch, 0, 0, 8), Budget(tokens=12)
    objective = Objective(recipe=recipe, temperature=1.0)
    done = update(
        policy, optimizer, batch, totals, objective, max_grad_norm=0.5, budget=budget, clock=Clock()
    )
    return done.grad_norm


def test_every_family_steps_alike_where_its_weights_are_divided(tmp_path: Path):
    def work(number: int) -> None:
        with dist.joined():
            for family in FAMILIES:
                policy = tiny_policy(family)
                if family == "qwen2":
                    enable_gradient_checkpointing(policy)
                divide(policy)
                norm = stepped(policy)
                if weights := policy.held.gathered():
                    save_file({**weights, "norm": torch.tensor(norm)}, tmp_path / family)

    assert on_ranks(2, tmp_path / "log", work) == [0, 0], (tmp_path / "log.0").read_text()
    for family in FAMILIES:
        policy, found = tiny_policy(family), load_file(tmp_path / family)
        assert stepped(policy) == pytest.approx(float(found.pop("norm")), rel=1e-5)
        expected = policy.snapshot()
        assert found.keys() == expected.keys()
        assert max(float((found[name] - expected[name]).abs().max()) for name in found) <= 1e-6, family


def test_a_rank_holds_its_rows_of_weights_gradients_and_optimizer(tmp_path: Path):
    """Three ranks: of 32 rows they hold 11, 11 and 10; of the four rows of a small weight 2, 2 and none."""

    def work(number: int) -> None:
        with dist.joined():
            policy = tiny_policy("llama")
            whole = policy.snapshot()
            assert policy.held.gathered().keys() == (whole.keys() if number == 0 else set())
            divide(policy)
            rows = policy.held.rows
            assert rows is not None
            parts = dict(policy.trainable())
            assert {name: len(part) for name, part in parts.items()} == {n: len(r) for n, r in rows.items()}
            assert len(rows["model.norm.weight"]) == (11, 11, 10)[number]
            for name, part in parts.items():
                assert torch.equal(part, whole[name][rows[name].start : rows[name].stop])
            # A pass leaves nothing behind but what is beside the layers, for the head to come.
            toy_batch(policy)
            kept = [name for name, param in policy.model.named_parameters() if not isinstance(param, DTensor)]
            assert kept == ["model.embed_tokens.weight", "model.norm.weight"]
            with policy.whole():
                for name, param in policy.model.named_parameters():
                    assert torch.equal(param, whole[name])
            assert all(isinstance(param, DTensor) for param in policy.model.parameters())
            changed = {name: part.detach() + 1 for name, part in parts.items()}
            with policy.using(changed), policy.whole():
                for name, param in policy.model.named_parameters():
                    assert torch.equal(param, whole[name] + 1)
            gathered = policy.held.gathered()
            assert gathered.keys() == (whole.keys() if number == 0 else set())
            assert all(torch.equal(gathered[name], whole[name]) for name in gathered)

    assert on_ranks(3, tmp_path / "log", work) == [0] * 3, (tmp_path / "log.0").read_text()


def test_an_adapter_is_not_divided_nor_what_an_optimizer_takes_from_a_whole_matrix():
    base: dict[str, dict[str, object]] = {
        "model": {"path": "m"},
        "data": {"path": "d.csv"},
        "reward": {"use": "r:r"},
    }

    def refusal(**sections: dict[str, object]) -> str:
        shard: dict[str, dict[str, object]] = {**base, "run": {"layout": "shard"}}
        for name, values in sections.items():
            shard[name] = {**shard.get(name, {}), **values}
        with pytest.raises(ConfigError) as caught:
            from_mapping(shard)
        return str(caught.value)

    assert 'run.layout is "shard"; allowed: "replicate" with an adapter' in refusal(model={"lora": {}})
    assert "with an adapter" in refusal(model={"adapter": "a"})
    assert "weights of 4 or 8 bits" in refusal(model={"quantize": "nf4", "lora": {}})
    for name in ("adamw_8bit", "paged_adamw_8bit", "torch.optim.Adafactor"):
        assert f'optim.name is "{name}"; allowed: adamw or sgd' in refusal(optim={"name": name})
    assert "in a warm start" in refusal(algo={"recipe": "sft"}, reward={"use": ()})
    assert "with servers" in refusal(engine={"kind": "vllm"})


def test_one_process_holds_everything_whatever_the_layout(place: Path, tmp_path: Path):
    for name, layout in (("one", "replicate"), ("too", "shard")):
        list(run(config_for(place, tmp_path / name, engine=PLAIN, run={"steps": 1, "layout": layout})))
    first, second = (
        (tmp_path / name / "toy" / "final" / "model.safetensors").read_bytes() for name in ("one", "too")
    )
    assert first == second


def with_a_scalar(policy: Policy) -> None:
    policy.head.register_parameter("scale", torch.nn.Parameter(torch.tensor(1.0)))


def with_layers_tied(policy: Policy) -> None:
    first, second = (policy.model.get_submodule(f"model.layers.{number}.mlp.up_proj") for number in range(2))
    second.register_parameter("weight", first.weight)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(with_a_scalar, "scalar parameters"), (with_layers_tied, "is shared with a parameter")],
)
def test_a_model_that_can_t_be_divided_is_refused(tmp_path: Path, spoil: Callable[[Policy], None], says: str):
    def work(number: int) -> None:
        with dist.joined():
            policy = tiny_policy("llama")
            spoil(policy)
            with pytest.raises(ModelError) as caught:
                divide(policy)
            said, _, remedy = str(caught.value).rpartition(". ")
            assert said.startswith("LlamaForCausalLM can't be divided among ranks: ")
            assert says in said
            assert said[-1] != "."
            assert remedy == 'Set run.layout = "replicate".'

    assert on_ranks(2, tmp_path / "log", work) == [0, 0], (tmp_path / "log.0").read_text()


def test_a_rank_that_runs_out_of_memory_says_how_the_run_goes_on(tmp_path: Path):
    def short_of_memory(tokens: object) -> NoReturn:
        raise torch.OutOfMemoryError("no memory")

    def work(number: int) -> None:
        with dist.joined():
            policy = tiny_policy("llama")
            divide(policy)
            recipe = replace(GRPO, objective=short_of_memory) if number else GRPO
            kind, says = (
                (TrainingError, r"^rank 1 ran out of memory at 12 .*--resume --run\.budget_tokens 6,")
                if number
                else (RankError, "another rank is gone")
            )
            with pytest.raises(kind, match=says):
                stepped(policy, recipe)

    assert on_ranks(2, tmp_path / "log", work) == [0, 0], (tmp_path / "log.0").read_text()


class Counting(TorchDispatchMode):
    """Counts the bytes that a rank receives when weights are gathered and gradients divided."""

    received = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(name in str(func) for name in ("_allgather_base_", "_reduce_scatter_base_")):
            whole = max(args[0].nbytes, args[1].nbytes)
            self.received += whole * (dist.world_size() - 1) // dist.world_size()
        return func(*args, **(kwargs or {}))


def test_what_is_sent_is_what_the_page_on_scale_says(tmp_path: Path):
    def work(number: int) -> None:
        with dist.joined():
            policy = tiny_policy("llama")
            all_rows = {name: param.shape for name, param in policy.trainable()}
            divide(policy)
            batch = toy_batch(policy, num_prompts=2, group_size=1)
            with Counting() as scoring, torch.no_grad():
                policy.score(batch, temperature=1.0)
            with Counting() as gathering, policy.whole():
                pass
            optimizer = torch.optim.SGD([part for _, part in policy.trainable()], lr=1.0)
            with Counting() as updating:
                # A rollout each, of which one micro-batch is made.
                update(
                    policy,
                    optimizer,
                    batch,
                    count_totals(batch, 0, 0, 8),
                    OBJECTIVE,
                    max_grad_norm=1.0,
                    budget=Budget(tokens=1),
                    clock=Clock(),
                )
            # Rows count as a multiple of the ranks.
            sizes = {name: (shape[0] + 1) // 2 * 2 * shape[1:].numel() for name, shape in all_rows.items()}
            total = sum(sizes.values())
            rest = sum(size for name, size in sizes.items() if ".layers." not in name)
            assert scoring.received == gathering.received == 4 * total // 2
            assert updating.received == 4 * (3 * total - rest) // 2

    assert on_ranks(2, tmp_path / "log", work) == [0, 0], (tmp_path / "log.0").read_text()
