"""A sampler that is not the policy being trained is found at once, whichever way the sync broke."""

import math

import pytest
import torch

from broken_engines import (
    Broken,
    all_but_the_first_layer,
    kept_from_the_start,
    of_the_version_before,
    one_after_its_stop,
    shifted,
    twice_the_adapter,
    without_its_stop,
)
from muster.adapters import add_lora
from muster.engines.local import LocalEngine
from muster.errors import EngineError
from muster.loop import train
from muster.policy import Policy
from tiny import tiny_model, tiny_policy, tiny_tokenizer
from toy_rewards import always_one, low_bytes
from toy_run import Lying, held_out, number, same, toy_run, weights_of

FAST = 3e-2
"""A learning rate at which one update moves the logprobs by more than the bound."""
LONGER = {"max_tokens": 8}
MANY_STOPS = {"stop_ids": frozenset(range(2, 60)), "max_tokens": 8}
"""So many tokens end a completion that some do, and that others reach the limit."""


def adapted_policy() -> Policy:
    model = add_lora(tiny_model(), rank=4, alpha=8.0, targets=["q_proj", "v_proj", "down_proj"], seed=1)
    return Policy(model, tiny_tokenizer(), max_tokens=256)


def broken_run(reward=low_bytes, *, policy=None, engine=None, **options):
    policy = policy or tiny_policy()
    engine = engine or {}
    settings = {"lr": FAST, "num_steps": 4, "sampling": LONGER, **options}
    return toy_run(policy, reward, engine=Broken(LocalEngine(policy), **engine), **settings)


def stopped(run) -> str:
    with pytest.raises(EngineError) as caught:
        list(train(run))
    return str(caught.value)


LOADS = {
    "stale": kept_from_the_start,
    "one layer": all_but_the_first_layer,
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("lag", [1, 2])
def test_weights_that_were_not_loaded_are_found_at_the_next_step(load, lag):
    run = broken_run(engine={"load": load}, sync_every=lag)
    said = stopped(run)
    assert run.state.step == lag
    assert f"nats at step {lag + 1}, above engine.max_mismatch = 0.05" in said
    assert "weights were not synced" in said


def test_a_stale_adapter_is_found():
    run = broken_run(policy=adapted_policy(), engine={"load": kept_from_the_start}, lr=0.1)
    said = stopped(run)
    assert run.state.step >= 1
    # The adapter of the start is none at all: its product is zero.
    assert "Likely cause: the sampler runs without the adapter, which leaves" in said


def test_an_adapter_at_another_scale_is_found():
    run = broken_run(policy=adapted_policy(), engine={"load": twice_the_adapter}, lr=0.1)
    assert "or an adapter is scaled" in stopped(run)


@pytest.mark.parametrize("reward", [low_bytes, always_one])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_another_temperature_is_found_and_named(reward, temperature):
    run = broken_run(reward, engine={"sampling": {"temperature": temperature}})
    said = stopped(run)
    assert run.state.step == 0
    assert f"the sampler runs at temperature {temperature:g} instead of 1" in said


@pytest.mark.parametrize("reward", [low_bytes, always_one])
def test_logprobs_that_are_shifted_by_one_are_found_and_named(reward):
    said = stopped(broken_run(reward, engine={"change": shifted}))
    assert "each of the sampler's logprobs is that of the previous token, which leaves" in said


STOPS = {
    "other stop tokens": ({"sampling": {"stop_ids": frozenset(range(3, 63))}}, "token"),
    "no stop token": ({"change": without_its_stop}, "none of the stop tokens"),
    "one token more": ({"change": one_after_its_stop}, "none of the stop tokens"),
    "no stops": ({"sampling": {"ignore_eos": True}}, "The engine ends at other tokens"),
    "longer": ({"sampling": {"max_tokens": 12, "ignore_eos": True}}, "The engine ran past its limit"),
    "shorter": ({"sampling": {"max_tokens": 5}}, "ends at 5 of 8 tokens"),
}


@pytest.mark.parametrize(("engine", "says"), STOPS.values(), ids=STOPS)
def test_completions_that_end_elsewhere_are_found(engine, says):
    said = stopped(broken_run(engine=engine, sampling=MANY_STOPS))
    assert "can't be trained on" in said
    assert says in said


@pytest.mark.parametrize("sampling", [{"ignore_eos": True}, {"stop_strings": ("e", " ")}])
def test_completions_that_end_as_asked_are_none_of_these(sampling):
    run = broken_run(sampling={**MANY_STOPS, **sampling}, lr=1e-3)
    assert len(list(train(run))) == 4


def test_a_stop_that_was_not_asked_for_is_found():
    run = broken_run(engine={"sampling": {"ignore_eos": False}}, sampling={**MANY_STOPS, "ignore_eos": True})
    assert "the engine looks for stops" in stopped(run).lower()


def test_another_version_is_found():
    run = broken_run(engine={"change": of_the_version_before})
    said = stopped(run)
    assert run.state.step == 1
    assert "carries version 0 of the policy, and version 1 was loaded last" in said


@pytest.mark.parametrize("logprob", [math.nan, 0.5])
def test_logprobs_that_can_not_be_are_found(logprob):
    said = stopped(toy_run(engine=Lying(LocalEngine(tiny_policy()), logprob + 100)))
    assert "above 0 or not finite" in said


def test_the_wrong_weights_are_found_in_an_evaluation_alone():
    """The newest weights are loaded for it, where the sampler lags: that load is proven like all others."""
    run = broken_run(engine={"load": kept_from_the_start}, sync_every=3, num_steps=2, num_held_out=2, lr=0.1)
    said = stopped(run)
    # Step 1 itself was sampled by the weights of the start, as it should be.
    assert run.state.step == 1
    assert "nats at step 1" in said


def test_the_last_load_is_proven_by_the_last_evaluation():
    run = broken_run(engine={"load": kept_from_the_start}, num_steps=1, num_held_out=2)
    assert "nats at step 1" in stopped(run)
    assert run.state.step == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"minibatches": 2, "passes": 2},
        {"sync_every": 2},
        {"reward": always_one},
        {"reward": always_one, "objective": {"kl_coef": 0.1}},
        {"sampling": {**LONGER, "top_k": 5, "temperature": 0.7}, "reward": always_one},
    ],
    ids=["plain", "many updates", "lagging", "no signal", "KL alone", "truncated sampling"],
)
def test_every_step_and_every_evaluation_carries_the_figure(options):
    reports = list(train(broken_run(num_held_out=2, **{"lr": 1e-2, **options})))
    assert [report.step for report in reports] == [0, 1, 2, 3, 4]
    assert max(number(report, "sampling/mismatch") for report in reports[1:]) < 1e-4
    assert max(number(report, "eval_sampling/mismatch") for report in reports) < 1e-4
    assert all("eval_sampling/mismatch" in held_out(report).metrics for report in reports)


def test_the_figure_of_a_step_is_measured_before_its_update():
    """By hand: logprobs that are all off by 0.03 disagree by 0.03, and that is within the bound."""
    policy = tiny_policy()
    reports = list(train(toy_run(policy, engine=Lying(LocalEngine(policy), -0.03), num_steps=2)))
    assert [round(number(report, "sampling/mismatch"), 4) for report in reports] == [0.03, 0.03]


def test_the_proof_changes_nothing():
    quiet, watched = (toy_run(num_held_out=count, num_steps=3, sync_every=2) for count in (0, 3))
    list(train(quiet))
    list(train(watched))
    assert same(weights_of(quiet), weights_of(watched))
    assert quiet.budget == watched.budget
    assert all(torch.isfinite(tensor).all() for tensor in weights_of(quiet).values())
