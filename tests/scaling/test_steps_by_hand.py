"""Operations, seconds, bytes and memory of a small made-up run: every number worked by hand."""

from dataclasses import replace

import pytest

from muster.scaling import (
    Layout,
    Model,
    Part,
    Rates,
    Step,
    Work,
    assumed_paces,
    curve,
    limit_of,
    memory_of,
    step_of,
    tokens_within,
)
from muster.scaling.memory import LOGITS_BYTES
from muster.scaling.paces import forward_flops, update_flops

MODEL = Model(
    name="m",
    num_params=1000,
    layer_params=600,
    head_params=300,
    adapter_params=0,
    trained_params=1000,
    trained_tensors=10,
    rest_params=400,
    num_layers=2,
    weight_bytes=4000,
    read_bytes=3600,
    state_bytes=8000,
    activation_bytes=50,
    cache_bytes=16,
    cache_numbers=4,
    pair_flops=40,
    num_vocab=30,
    itemsize=4,
    shares_prompts=True,
)
WORK = Work(prompts=2, group_size=4, prompt_tokens=10, longest_prompt=12, max_tokens=6, budget_tokens=32)
RATES = Rates(
    memory=1e9,
    flops=1e6,
    train_use=0.5,
    sample_use=0.25,
    bandwidth=1e6,
    bandwidth_use=0.5,
    link=1e5,
    network=1e4,
    share=1e4,
    latency=1e-3,
    reward=0.01,
    completion=5,
    longest=6,
)
ADAPTED = replace(MODEL, adapter_params=100, trained_params=100)
PACES = assumed_paces(MODEL, WORK, RATES)


def test_a_forward_pass_takes_two_operations_a_weight_and_token():
    # 8 completions of 5 tokens and 2 prompts of 10: 60 tokens, of which 40 reach the head. A completion's
    # token sees 10 + 5 / 2 others, a prompt's 10 / 2: 40 * 12.5 + 20 * 5 pairs.
    once = forward_flops(MODEL, WORK, RATES, 20)
    assert once == (2 * 600 * 60, 2 * 300 * 40, 0, 40 * 600)
    assert once.forward == 120_000


def test_an_update_takes_three_forward_passes_and_fewer_below_an_adapter():
    assert update_flops(MODEL, WORK, RATES) == 3 * 120_000
    # Frozen weights need the gradient of what went in alone: 96,000; adapter and attention take both.
    assert update_flops(ADAPTED, WORK, RATES) == 132_000 + 96_000 + 2 * (12_000 + 24_000)
    # All but the head again.
    assert update_flops(MODEL, replace(WORK, recomputes=True), RATES) == 360_000 + 96_000
    assert update_flops(MODEL, replace(WORK, passes=2, scored=3), RATES) == 2 * 360_000 + 3 * 120_000


def test_a_prompt_that_is_not_shared_is_trained_on_once_for_every_completion():
    alone = replace(MODEL, shares_prompts=False)
    # 120 tokens: 40 sampled, 80 of prompts; 40 * 12.5 + 80 * 5 pairs.
    assert update_flops(alone, WORK, RATES) == 3 * (2 * 600 * 120 + 24_000 + 40 * 900)


def test_paces_are_operations_and_bytes_over_what_a_device_does():
    assert PACES.pass_s == pytest.approx(3600 / 5e5)
    # 120,000 operations at 2.5e5 a second; 40 tokens read 2.5 keys of their own and 10 / 4 of their prompt's.
    assert PACES.token_s == pytest.approx((0.48 + 40 * 5 * 16 / 5e5) / 60)
    assert PACES.train_s == pytest.approx(360_000 / 5e5 / 60)
    assert PACES.optimizer_s == pytest.approx((16 * 1000 + 2 * 8000) / 5e5)
    assert PACES.reward_s == 0.01


def parts_of(layout: Layout, work: Work = WORK) -> dict[str, Part]:
    return {part.name: part for part in step_of(MODEL, work, RATES, PACES, layout).parts}


def seconds_of(layout: Layout, work: Work = WORK) -> dict[str, float]:
    return {name: part.seconds for name, part in parts_of(layout, work).items()}


ONE = {
    "weights read": 0.0072 * 6,
    "tokens sampled": 0.4864,
    "rewards": 0.08,
    "forward and backward": 0.72,
    "optimizer": 0.064,
}


def test_one_device_does_all_the_work_and_sends_nothing():
    step = step_of(MODEL, WORK, RATES, PACES, Layout(1, 1))
    assert {part.name: part.seconds for part in step.parts} == pytest.approx(ONE)
    assert step.seconds == pytest.approx(1.3936)
    assert (step.of("sample"), step.of("update"), step.of("network")) == pytest.approx((0.6096, 0.784, 0))
    assert step.longest.name == "forward and backward"
    assert not any(part.sent for part in step.parts)


def test_rollouts_beyond_the_rows_of_a_rank_take_further_passes():
    assert seconds_of(Layout(1, 1), replace(WORK, max_rows=3))["weights read"] == pytest.approx(3 * 0.0432)


def test_two_devices_halve_what_goes_by_tokens_and_send_gradients_scores_and_rollouts():
    parts = parts_of(Layout(1, 2))
    assert seconds_of(Layout(1, 2)) == pytest.approx(
        {
            "weights read": 0.0432,
            "tokens sampled": 0.2432,
            "rewards": 0.04,
            "forward and backward": 0.36,
            "optimizer": 0.064,
            "gradients": 4000 / 1e5 + 10 * 1e-3,
            "logprobs": 432 / 1e5,
            "rollouts": 520 / 1e5,
        }
    )
    # Twice half of 4 bytes a weight; of 9 bytes for 8 rollouts of 6 tokens; 26 bytes for 20 of 40 tokens.
    assert [parts[name].sent for name in ("gradients", "logprobs", "rollouts")] == [4000, 432, 520]
    twice = parts_of(Layout(1, 2), replace(WORK, updates=2, passes=2, scored=1))
    assert [twice[name].sent for name in ("gradients", "logprobs")] == [8000, 3 * 432]


def test_nodes_send_over_their_network_and_more_ranks_than_prompts_sample_nothing_more():
    seconds = seconds_of(Layout(2, 2))
    assert seconds["tokens sampled"] == pytest.approx(0.2432)
    # Two rollouts a rank, and their prompt before them.
    assert seconds["forward and backward"] == pytest.approx(0.012 * 20)
    assert seconds["gradients"] == pytest.approx(6000 / 1e4 + 0.01)
    assert seconds["logprobs"] == pytest.approx(648 / 1e4)
    # Each of a node's two ranks is sent its own copy.
    assert seconds["rollouts"] == pytest.approx(780 / 5e3)


def test_servers_sample_and_are_given_the_weights():
    seconds = seconds_of(Layout(1, 1, 2))
    assert seconds == pytest.approx(
        {
            **ONE,
            "tokens sampled": 0.2432,
            "weights to servers": 3 * 4000 / 1e4,
            "completions of servers": 2000 / 1e4,
        }
    )


def test_scaling_stops_where_twice_the_devices_are_hardly_faster():
    steps = curve(MODEL, WORK, RATES, PACES, per_node=8)
    assert [step.layout for step in steps] == [Layout(1, 1), Layout(1, 2), Layout(1, 4)]
    limit = limit_of(steps)
    assert limit is not None
    assert limit.devices == 2
    assert limit.gain == pytest.approx(0.80992 / 0.71468, rel=1e-4)
    # The update still shrinks; whole groups do not.
    assert limit.part.name == "tokens sampled"


def test_a_curve_goes_over_nodes_that_are_as_full_as_they_can_be():
    wide = replace(WORK, prompts=4096)
    paces = assumed_paces(MODEL, wide, RATES)
    fast = replace(RATES, link=1e12, network=1e12, latency=1e-9)
    steps = curve(MODEL, wide, fast, paces, per_node=6, most=16)
    assert [str(step.layout) for step in steps] == ["1", "2", "4", "2x4", "4x4"]
    assert limit_of(steps) is None
    assert limit_of(steps[:1]) is None


def test_memory_adds_up_to_the_larger_of_update_and_sampling():
    memory = memory_of(MODEL, WORK, RATES, Layout(1, 1))
    assert (memory.weights, memory.optimizer, memory.copies, memory.gradients) == (4000, 8000, 0, 4000)
    assert memory.activations == 32 * 50
    # 2 prompts of 12 and 8 rollouts of 6 tokens, and four copies of 8 rows of 30 float32 logits.
    assert memory.cache == (2 * 12 + 8 * 6) * 16 + 4 * 4 * 8 * 30
    assert memory.resident == 12_000
    assert memory.peak == 12_000 + 4000 + 1600 + LOGITS_BYTES
    assert memory.server is None
    few = memory_of(MODEL, replace(WORK, copies=3, max_rows=4), RATES, Layout(1, 8))
    assert few.copies == 12_000
    assert few.cache == (12 + 4 * 6) * 16 + 4 * 4 * 4 * 30
    # One rollout with its prompt is all that a rank of eight computes.
    assert few.activations == (12 + 6) * 50


def test_a_server_holds_weights_in_the_runs_precision_and_a_rank_beside_it_no_keys():
    low = replace(MODEL, itemsize=2, cache_bytes=12)
    memory = memory_of(low, WORK, RATES, Layout(1, 1, 2))
    assert memory.cache == 0
    assert memory.casts == 2 * 900
    assert memory.server == 2 * 1000 + (12 + 4 * 6) * 8 + 4 * 4 * 4 * 30


def test_a_budget_that_is_not_set_is_what_half_of_the_rest_holds():
    assert tokens_within(100_000, 20_000, 100) == 400
    assert tokens_within(0, 20_000, 100) == 256
    assert tokens_within(1e12, 0, 100) == 16_384
    small = replace(RATES, memory=100_000.0)
    memory = memory_of(MODEL, replace(WORK, budget_tokens=None), small, Layout(1, 1))
    assert memory.budget_tokens == (100_000 - 4000 - 12_000) // 2 // 50


def test_the_parts_of_a_step_are_its_seconds():
    step = Step(layout=Layout(1, 1), parts=(Part("a", "sample", 1.0), Part("b", "network", 2.0, 5.0)))
    assert (step.seconds, step.of("update"), step.longest.name) == (3.0, 0.0, "b")


DIVIDED = replace(WORK, divides=True)


def test_ranks_that_divide_the_weights_hold_a_part_and_gather_the_rest():
    memory = memory_of(MODEL, replace(DIVIDED, copies=1), RATES, Layout(1, 2))
    assert (memory.weights, memory.optimizer, memory.gradients, memory.copies) == (2000, 4000, 2000, 2000)
    # 400 beside the layers and two of 300 in a pass; all 1,000 while sampling.
    assert (memory.gathered, memory.whole) == (4 * 1000, 4000)
    update = 2000 + memory.activations + LOGITS_BYTES + 4000
    assert memory.peak == 8000 + max(update, 4000 + memory.cache)
    assert memory_of(MODEL, DIVIDED, RATES, Layout(1, 1)) == memory_of(MODEL, WORK, RATES, Layout(1, 1))


def test_divided_weights_are_gathered_for_sampling_and_for_every_part_of_an_update():
    parts = parts_of(Layout(1, 2), replace(DIVIDED, scored=1, budget_tokens=16))
    # 30 tokens in parts of 16: two. Half of 4,000 bytes once to sample, twice to score, twice forward; of the
    # 600 in layers twice more backward. Gradients twice.
    assert parts["weights gathered"].sent == 2000 * (1 + 2 + 2) + 2 * 1200
    assert parts["gradients"].sent == 2 * 2000
    # Three groups of weights, each a sum by itself.
    assert parts["weights gathered"].seconds == pytest.approx(12_400 / 1e5 + 1e-3 * 3 * 2 * 3)
    assert parts["gradients"].seconds == pytest.approx(4000 / 1e5 + 1e-3 * 3 * 2)
    assert parts["optimizer"].seconds == pytest.approx(0.032)
    assert seconds_of(Layout(1, 1), DIVIDED) == pytest.approx(ONE)
