"""The KL term's pull, estimator by estimator, worked by hand."""

import json
import math
import shutil
from pathlib import Path

import pytest

from muster.doctor import Settings, facts_of
from muster.doctor.course import settings_of
from muster.doctor.distance import pull_over_push
from muster.doctor.facts import StepFacts
from muster.records import Trace
from toy_run import completion_of, group_of

D = ((0.5, -1.0), (2.0, 0.0))
"""logprob - reference logprob of two completions of two tokens; the last token does not count."""
MASKS = ((True, True), (True, False))
K2 = (0.5 + 1.0 + 2.0) / 3  # mean |d| over three tokens
K3 = ((1 - math.exp(-0.5)) + (math.e - 1) + (1 - math.exp(-2.0))) / 3  # mean |1 - exp(-d)|
K2_MOVING = ((0.5 + 0.125) + abs(-1.0 + 0.5) + (2.0 + 2.0)) / 3  # mean |d + d^2 / 2|
PUSH = 0.8  # all advantages are 0.8 or -0.8


def step() -> StepFacts:
    completions = [completion_of((4, 5)), completion_of((6, 7))]
    group = group_of([1.0, 0.0], completions=completions)
    reference = [-1.0 - value for value in (*D[0], *D[1])]
    traces = [
        Trace(
            reward=None,
            advantage=sign * PUSH,
            mask=MASKS[place],
            old_logprobs=(-1.0, -1.0),
            ref_logprobs=tuple(reference[2 * place : 2 * place + 2]),
            logprobs=(-1.0, -1.0),
        )
        for place, sign in enumerate((1.0, -1.0))
    ]
    return facts_of(1, [group], [traces])


@pytest.mark.parametrize(
    ("kl", "has_moving_ratio", "size"),
    [
        ("k1", False, None),  # its gradient is 1 wherever the token went: it pulls nowhere
        ("k2", False, K2),
        ("k3", False, K3),
        ("none", False, None),
        ("k1", True, K2),
        ("k2", True, K2_MOVING),
        ("k3", True, K2),
    ],
)
def test_in_the_loss_each_estimator_pulls_by_its_own_gradient(kl, has_moving_ratio, size):
    settings = Settings(kl_coef=0.5, kl=kl, has_moving_ratio=has_moving_ratio)
    expected = None if size is None else pytest.approx(0.5 * size / PUSH)
    assert pull_over_push(step(), settings) == expected


def test_in_the_reward_the_pull_is_what_the_charge_differs_by_within_groups():
    facts = step()
    assert facts.kl is not None
    sampled = [sum(completion_of(ids).sampler_logprobs) for ids in ((4, 5), (6, 7))]
    k1 = [s - sum(-1.0 - value for value in row) for s, row in zip(sampled, D)]
    # Two values differ from their mean by half their distance; the scores, 1 and 0, by a half.
    assert facts.kl.charges["k1"] == pytest.approx(abs(k1[0] - k1[1]) / 2)
    settings = Settings(kl_coef=0.5, kl="k1", kl_in="reward")
    assert pull_over_push(facts, settings) == pytest.approx(0.5 * (abs(k1[0] - k1[1]) / 2) / 0.5)


def test_the_hand_computed_gradients_are_those_of_the_functions():
    import torch

    from muster.algo.kl import k1, k2, k3

    d = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    for function, size in ((k2, K2), (k3, K3)):
        logprobs = d.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(logprobs, torch.zeros_like(d)).sum(), logprobs)
        assert gradient.abs().mean().item() == pytest.approx(size)
    for function, size in ((k1, K2), (k2, K2_MOVING), (k3, K2)):
        logprobs = d.clone().requires_grad_()
        kl = function(logprobs, torch.zeros_like(d), logprobs.detach(), ratio="differentiable")
        (gradient,) = torch.autograd.grad(kl.sum(), logprobs)
        # k1's carries a 1 more, which averages to 0 over samples of the policy.
        assert (gradient - float(function is k1)).abs().mean().item() == pytest.approx(size)


@pytest.mark.parametrize(
    ("algo", "expected"),
    [
        ("kl_coef = 1.0", ("k2", False, "loss")),
        ('kl_coef = 1.0\nkl_in = "reward"', ("k1", False, "reward")),
        ('kl = { use = "k3", ratio = "differentiable" }', ("k3", True, "loss")),
        ('kl = "k3"', ("k3", False, "loss")),
    ],
)
def test_the_estimator_is_the_configurations(algo: str, expected: tuple[str, bool, str], tmp_path: Path):
    (tmp_path / "config.toml").write_text(f"[algo]\n{algo}\n")
    found = settings_of(tmp_path)
    assert (found.kl, found.has_moving_ratio, found.kl_in) == expected


def test_a_strangled_run_is_said_to_be_one_for_k3_and_not_for_k1(recorded_runs: Path, tmp_path: Path, capsys):
    from muster.cli import main

    found = {}
    for kl in ("k1", "k3"):
        folder = tmp_path / kl
        shutil.copytree(recorded_runs / "strangled-kl", folder)
        text = (folder / "config.toml").read_text()
        lines = [line for line in text.splitlines() if not line.startswith("kl =")]
        place = lines.index("[algo]") + 1
        (folder / "config.toml").write_text("\n".join([*lines[:place], f'kl = "{kl}"', *lines[place:]]))
        assert main(["doctor", str(folder), "--json"]) == 0
        found[kl] = [one["name"] for one in json.loads(capsys.readouterr().out)["findings"]]
    assert "strangled-kl" in found["k3"]
    assert "strangled-kl" not in found["k1"]
