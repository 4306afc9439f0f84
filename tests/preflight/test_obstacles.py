"""Memory that isn't there, ends that don't stop, rewards that hold up, prompts that are left out."""

from muster.config import from_mapping
from muster.engines.base import Sampling
from muster.findings import look
from muster.loop import setup_of
from muster.preflight import Costs, TurnEnd
from muster.preflight.obstacles import about_costs, about_prompts, about_rewards, about_turns
from muster.rewards import CallTimes
from toy_run import group_of, toy_run

SEEN = look([group_of([0.0, 1.0])], setup_of(toy_run()))
SAMPLING = Sampling(group_size=4, max_tokens=8)


def config(**sections):
    return from_mapping(
        {"model": {"path": "m"}, "data": {"path": "d.csv"}, "reward": {"use": "r:r"}, **sections}
    )


def costs(**changes):
    numbers = {
        "start_s": 1.0, "sample_s": 2.0, "score_s": 0.1, "update_s": 2.0, "eval_s": 1.0, "num_evals": 2,
        "save_s": 1.0, "num_saves": 1, "export_s": 1.0, "num_steps": 4, "tokens_per_s": 100.0,
        "peak_bytes": 3_000_000_000, "available_bytes": 4_000_000_000, "paces": None, "longest_tokens": 64.0,
    }  # fmt: skip
    return Costs(**{**numbers, **changes})


def test_the_costs_of_a_run_add_up():
    assert costs().step_s == 4.1
    assert costs().total_s == 1 + 4 * 4.1 + 2 + 1 + 1
    assert costs(update_s=None).step_s == 2.1


def test_memory_that_is_not_there_keeps_a_run_from_learning():
    assert list(about_costs(costs(), config())) == []
    assert list(about_costs(costs(peak_bytes=None), config())) == []
    [finding] = about_costs(costs(peak_bytes=5_000_000_000), config())
    assert finding.blocks
    assert "needs about 5.0 GB, and there are 4.0 GB" in finding.says
    assert finding.setting == "model.lora"
    adapted = config(model={"path": "m", "lora": {}, "gradient_checkpointing": True})
    [finding] = about_costs(costs(peak_bytes=5_000_000_000), adapted)
    assert finding.setting == "run.budget_tokens"
    assert "gradient_checkpointing" not in finding.advice


def test_turns_that_do_not_stop_are_a_finding():
    assert list(about_turns(None, SAMPLING, SEEN)) == []
    assert list(about_turns(TurnEnd("<e>", stops=True), SAMPLING, SEEN)) == []
    [finding] = about_turns(TurnEnd("<e>", stops=False), SAMPLING, SEEN)
    assert (finding.setting, finding.value) == ("sampling.stop", "<e>")
    [finding] = about_turns(TurnEnd(None, stops=False), SAMPLING, SEEN)
    assert finding.value is None


def test_rewards_that_hold_up_a_step_are_a_finding():
    times = {"quick": CallTimes(num_calls=9, total_s=0.1), "slow": CallTimes(num_calls=9, total_s=8.0)}
    assert list(about_rewards(times, costs(), config())) == []
    assert list(about_rewards(times, costs(score_s=0.9, sample_s=0.1, update_s=0.1), config())) == []
    [finding] = about_rewards(times, costs(score_s=4.0), config())
    assert "scoring takes 4.0 s of the 8.0 s of a step, most of it slow" in finding.says


def test_calls_near_their_limit_are_a_finding():
    times = {"r": CallTimes(num_calls=9, total_s=9.0, slowest_s=16.0)}
    [finding] = about_rewards(times, costs(), config())
    assert (finding.setting, finding.value) == ("reward.time_limit_s", 60)
    assert list(about_rewards(times, costs(), config(reward={"use": "m:r", "in_process": ["r"]}))) == []


def test_prompts_left_out_are_a_finding_where_they_are_many():
    assert list(about_prompts(80, 20, 100)) == []
    [finding] = about_prompts(79, 21, 100)
    assert "21 of 100 prompts are longer than 100 tokens" in finding.says
