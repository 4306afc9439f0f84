"""Whole runs that sample with vLLM in their own process: trained, resumed, checked, of several turns."""

import string
from collections.abc import Generator

import pytest
from safetensors.torch import load_file

from fake_vllm_inside import Vllm, install
from muster import using
from muster.config import compare
from muster.errors import ConfigError
from muster.preflight import preflight
from muster.preflight.outline import work_of
from muster.records import StepReport
from muster.run import Watchers, run
from muster.store import read_metrics
from tiny import save_tiny_model
from toy_run import config_for

INSIDE: dict[str, object] = {"kind": "vllm_inside"}
FORMS: dict[str, dict[str, object]] = {"full": {}, "lora": {"lora": {"rank": 4, "alpha": 8.0}}}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    """vLLM, as far as an import can tell."""
    return install(monkeypatch)


def take(reports: Generator[StepReport], upto: int) -> None:
    """Asks for steps up to that one, so that nothing is exported."""
    while next(reports).step < upto:
        pass
    reports.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_run_trains_is_proven_and_measured(form, place, tmp_path, fake):
    said: list[str] = []
    chosen = config_for(
        place, tmp_path, model=FORMS[form], engine=INSIDE, eval={"every": 1}, run={"steps": 2}
    )
    take(run(chosen, watchers=Watchers(say=said.append)), 2)
    assert len([line for line in said if "sleeps between phases on a GPU only" in line]) == 1
    lines = read_metrics(tmp_path / "toy")
    assert all(0 <= line["sampling/mismatch"] < 1e-4 for line in lines if line["step"])
    assert all(line["eval_sampling/mismatch"] < 1e-4 for line in lines)
    # What was trained is measured with vLLM too, and so are full weights in the place of an adapter.
    for source in (tmp_path / "toy", save_tiny_model(tmp_path / "other", seed=1)):
        assert using.evaluate(chosen, model_path=source).metrics["eval_num_prompts"] == 2
    assert fake.living == 0


def test_a_run_that_stops_goes_on_as_the_whole(place, tmp_path, fake):
    def settings(folder: str):
        return config_for(place, tmp_path / folder, model=FORMS["lora"], engine=INSIDE, run={"save_every": 1})

    take(run(settings("whole")), 2)
    take(run(settings("parts")), 1)
    take(run(settings("parts"), resume=True), 2)
    assert read_metrics(tmp_path / "parts" / "toy") == read_metrics(tmp_path / "whole" / "toy")
    whole, parts = (
        load_file(tmp_path / folder / "toy" / "checkpoints" / "000002" / "weights.safetensors")
        for folder in ("whole", "parts")
    )
    assert all((whole[name] == parts[name]).all() for name in whole)
    assert fake.living == 0


def test_a_check_before_the_run_samples_with_it(place, tmp_path, fake):
    chosen = config_for(place, tmp_path, engine={**INSIDE, "options": {"max_rows": 4}}, run={"steps": 2})
    found = preflight(chosen, num_groups=2)
    assert found.seen.num_rollouts == 8
    assert fake.asked
    assert fake.living == 0
    with pytest.raises(ConfigError, match="--devices counts sampling on the training weights"):
        work_of(chosen, lambda _: None)


def test_rollouts_of_several_turns_are_sampled_with_it(place, tmp_path, fake):
    chosen = config_for(
        place,
        tmp_path,
        data={"environment": "toy_environments:Echo"},
        reward={"use": ["environment"]},
        model={"max_tokens": 512},
        sampling={"max_tokens": 8, "stop": list(string.ascii_letters), "group_size": 2},
        engine=INSIDE,
    )
    take(run(chosen), 1)
    assert all(0 <= line["sampling/mismatch"] < 1e-4 for line in read_metrics(tmp_path / "toy"))
    # A seed for each turn of each rollout, beside those of the check at start.
    assert len({params.seed for params in fake.asked}) > 2 + 4


def test_a_run_is_refused_before_anything_is_loaded(place, tmp_path, fake):
    with pytest.raises(ConfigError, match=r"engine\.ahead is 1 and engine\.kind is 'vllm_inside'"):
        next(run(config_for(place, tmp_path, engine={**INSIDE, "ahead": 1})))
    assert not (tmp_path / "toy").exists()
    assert fake.living == 0


def test_a_resumed_run_may_give_it_other_memory(place, tmp_path):
    was = config_for(place, tmp_path, engine=INSIDE)
    now = config_for(place, tmp_path, engine={**INSIDE, "options": {"memory_share": 0.5}})
    assert not compare(was, now).changing
    assert compare(was, config_for(place, tmp_path, engine={"kind": "vllm"})).changing
