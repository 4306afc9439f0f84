"""`muster.run.run` on a saved model: what is in the folder, and that stopping changes nothing."""

import json
import math
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from muster.errors import CheckpointError, ConfigError
from muster.run import Watchers, run
from muster.store import read_events, read_meta, read_metrics, read_rollouts, rollout_steps
from toy_run import config_for, content, number

FOUR_UPDATES = {
    "algo": {"minibatches": 2, "passes": 2, "kl_coef": 0.05},
    "sampling": {"sync_every": 3},
    "run": {"save_every": 1, "keep": 9},
    "eval": {"every": 2, "group_size": 2},
}
LORA = {"model": {"lora": {"rank": 4, "alpha": 8.0}}}


def strict(text):
    def refuse(name):
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory):
    """A run of every moving part, never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    reports = list(run(config_for(place, folder, **FOUR_UPDATES)))
    return folder / "toy", reports


def test_a_run_leaves_the_folder_that_the_design_names(whole):
    folder, reports = whole
    assert [report.step for report in reports] == [0, 1, 2, 3, 4]
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.toml", "meta.json", "metrics.jsonl", "timings.jsonl", "index", "events.jsonl",
        "rollouts", "eval", "checkpoints", "final",
    }  # fmt: skip
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        f"00000{n}" for n in (1, 2, 3, 4)
    ]
    assert sorted(path.name for path in (folder / "eval").iterdir()) == [
        f"00000{n}.parquet" for n in (0, 2, 4)
    ]
    for name in ("metrics.jsonl", "timings.jsonl", "index", "events.jsonl"):
        lines = (folder / name).read_text().splitlines()
        assert lines
        assert all(strict(line) for line in lines)
    assert read_meta(folder)["schema_version"] == 1
    assert [line["step"] for line in read_metrics(folder)] == [0, 1, 2, 3, 4]
    assert [event["kind"] for event in read_events(folder)] == ["start", "warning", "end"]
    assert rollout_steps(folder) == [1, 2, 3, 4]
    stored = read_rollouts(folder, 2)
    assert [group.id for group in stored.groups] == [group.id for group in reports[2].groups]
    for group, traces in zip(stored.groups, stored.traces, strict=True):
        for rollout, trace in zip(group.rollouts, traces, strict=True):
            length = len(rollout.completion.ids)
            lists = (trace.mask, trace.old_logprobs, trace.ref_logprobs, trace.logprobs, trace.entropy)
            assert [len(values) for values in lists] == [length] * 5


def test_the_trained_model_reloads_with_plain_transformers_and_is_another(whole, place):
    folder, _ = whole
    model = AutoModelForCausalLM.from_pretrained(folder / "final", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "final")
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(place / "model").chat_template
    saved = load_file(folder / "checkpoints" / "000004" / "weights.safetensors")
    trained, untrained = dict(model.named_parameters()), dict(base.named_parameters())
    assert saved.keys() == trained.keys()
    assert all(torch.equal(trained[name], saved[name]) for name in saved)
    assert all(not torch.equal(trained[name], untrained[name]) for name in saved)
    assert model.generation_config.eos_token_id == 2
    assert "toy_rewards:low_bytes" in (folder / "final" / "README.md").read_text()


def test_two_equal_runs_have_equal_bytes(whole, place, tmp_path):  # P15
    again = tmp_path / "again"
    list(run(config_for(place, again, **FOUR_UPDATES)))
    first, second = content(whole[0]), content(again / "toy")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4])
def test_a_run_stopped_after_any_step_and_resumed_equals_the_whole(
    whole, place, tmp_path, stop
):  # P1, B52 - B54
    config = config_for(place, tmp_path / "runs", **FOUR_UPDATES)
    half = run(config)
    for report in half:
        if report.step == stop:
            break
    half.close()
    resumed = list(run(config, resume=True))
    assert [report.step for report in resumed] == [n for n in range(5) if n > stop or stop == 0]
    first, second = content(whole[0]), content(tmp_path / "runs" / "toy")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_a_run_resumes_from_a_checkpoint_older_than_its_last_step(whole, place, tmp_path):
    """Saved every 2 steps, left after 3, and stopped once more on request on the way."""
    sections = {**FOUR_UPDATES, "run": {"save_every": 2, "keep": 9}}
    config = config_for(place, tmp_path / "runs", **sections)
    half = run(config)
    for report in half:
        if report.step == 3:
            break
    half.close()
    asked = run(config, resume=True, watchers=Watchers(should_stop=lambda: True))
    assert [report.step for report in asked] == [3]
    assert [report.step for report in run(config, resume=True)] == [4]
    first, second = content(whole[0]), content(tmp_path / "runs" / "toy")
    same = [name for name in first if name in second]
    assert {name.split("/")[1] for name in first.keys() - second.keys()} == {"000001"}
    assert [name for name in same if first[name] != second[name]] == []
    kinds = [event["kind"] for event in read_events(tmp_path / "runs" / "toy")]
    # What stands in the way is said once, after the first step of all.
    assert kinds == ["start", "warning", "resume", "start", "stopped", "resume", "start", "end"]


def test_what_rewards_note_in_an_evaluation_does_not_reach_the_next_step(place, tmp_path):
    sections = {
        "reward": {"use": ["toy_rewards:noting_chars"]},
        "eval": {"every": 1},
        "run": {"save_every": 1, "steps": 3},
    }
    list(run(config_for(place, tmp_path / "whole", **sections)))
    config = config_for(place, tmp_path / "half", **sections)
    half = run(config)
    assert [next(half).step for _ in range(2)]
    half.close()
    list(run(config, resume=True))
    first, second = (tmp_path / name / "toy" / "metrics.jsonl" for name in ("whole", "half"))
    assert first.read_bytes() == second.read_bytes()
    events = [event for event in read_events(tmp_path / "whole" / "toy") if event["kind"] == "extras"]
    assert [event["step"] for event in events] == [0, 1, 2, 3]
    assert len(events[1]["columns"]["parsed"]) == 8
    assert len(events[1]["columns"]["eval_parsed"]) == 2


def test_a_finished_run_resumed_stays_as_it_is(place, tmp_path):
    config = config_for(place, tmp_path / "runs", **FOUR_UPDATES)
    list(run(config))
    before = content(tmp_path / "runs" / "toy")
    assert list(run(config, resume=True)) == []
    assert content(tmp_path / "runs" / "toy") == before


def test_a_run_without_a_checkpoint_starts_over(place, tmp_path):
    config = config_for(place, tmp_path / "runs")
    half = run(config)
    assert [next(half).step for _ in range(2)]
    half.close()
    said = []
    reports = list(run(config, resume=True, watchers=Watchers(say=said.append)))
    assert [report.step for report in reports] == [1, 2, 3, 4]
    assert any("starting over" in text for text in said)
    assert [line["step"] for line in read_metrics(tmp_path / "runs" / "toy")] == [1, 2, 3, 4]


def test_resuming_under_other_settings_names_them(place, tmp_path):  # P3
    half = run(config_for(place, tmp_path / "runs", run={"save_every": 1}))
    next(half)
    half.close()
    other = config_for(place, tmp_path / "runs", run={"seed": 8}, sampling={"temperature": 0.9})
    with pytest.raises(ConfigError, match=r"(?s)sampling\.temperature.*run\.seed"):
        list(run(other, resume=True))
    with pytest.raises(ConfigError, match="not there"):
        list(run(config_for(place, tmp_path / "elsewhere"), resume=True))


def test_resume_passes_over_a_damaged_checkpoint_and_says_so(whole, place, tmp_path):
    config = config_for(place, tmp_path / "runs", **FOUR_UPDATES)
    half = run(config)
    for report in half:
        if report.step == 3:
            break
    half.close()
    folder = tmp_path / "runs" / "toy"
    newest = folder / "checkpoints" / "000003" / "weights.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])
    said = []
    steps = [report.step for report in run(config, resume=True, watchers=Watchers(say=said.append))]
    assert steps == [3, 4]
    assert any("passed over checkpoint 000003: weights.safetensors" in text for text in said)
    first, second = content(whole[0]), content(folder)
    assert [name for name in first if first[name] != second[name]] == []


def test_a_run_that_fails_says_why_in_its_events_and_keeps_its_checkpoints(place, tmp_path):  # B47
    config = config_for(
        place, tmp_path / "runs", reward={"use": ["toy_rewards:failing_late"]}, run={"save_every": 1}
    )
    with pytest.raises(Exception, match="could not be scored"):
        list(run(config))
    folder = tmp_path / "runs" / "toy"
    assert read_events(folder)[-1]["kind"] == "failure"
    assert (folder / "checkpoints" / "000002" / "manifest.json").exists()
    assert not (folder / "final").exists()


def test_what_is_wrong_is_found_before_a_folder_is_made(place, tmp_path):
    config = config_for(place, tmp_path / "runs", reward={"use": ["toy_rewards:nothing_of_that_name"]})
    with pytest.raises(Exception, match="nothing_of_that_name"):
        list(run(config))
    assert not (tmp_path / "runs").exists()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
def test_an_adapter_run_leaves_a_folder_that_peft_loads(place, tmp_path):
    config = config_for(place, tmp_path / "runs", **{**FOUR_UPDATES, **LORA})
    reports = list(run(config))
    assert reports[1].metrics["kl"] is not None
    final = tmp_path / "runs" / "toy" / "final"
    base = AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        before = base(ids).logits
        adapted = PeftModel.from_pretrained(base, str(final)).eval()
        after = adapted(ids).logits
    assert float((before - after).abs().max()) > 1e-3
    assert (final / "tokenizer.json").exists()
    assert not list(final.glob("*.bin"))
    assert "lora_dropout" in (final / "adapter_config.json").read_text()


@pytest.mark.parametrize("stop", [1, 2])
def test_an_adapter_run_resumes_to_the_same_bytes(place, tmp_path, stop):
    sections = {**FOUR_UPDATES, **LORA}
    list(run(config_for(place, tmp_path / "whole", **sections)))
    config = config_for(place, tmp_path / "half", **sections)
    half = run(config)
    for report in half:
        if report.step == stop:
            break
    half.close()
    list(run(config, resume=True))
    first, second = content(tmp_path / "whole" / "toy"), content(tmp_path / "half" / "toy")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_a_run_goes_on_from_a_trained_adapter_which_is_its_reference(place, tmp_path):  # B58
    list(run(config_for(place, tmp_path / "first", **LORA)))
    adapter = str(tmp_path / "first" / "toy" / "final")
    config = config_for(place, tmp_path / "second", model={"adapter": adapter}, algo={"kl_coef": 0.1})
    reports = list(run(config))
    assert abs(number(reports[0], "kl")) < 1e-6
    assert number(reports[-1], "kl_k3") > 0


def test_a_kl_penalty_that_would_be_normalised_away_is_refused(place, tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)algo\.kl_in.*normalised like a reward"):
        config_for(
            place,
            tmp_path,
            algo={"kl_coef": 0.1, "kl_in": "reward"},
            reward={"combine": "normalize_then_sum"},
        )


def test_an_epoch_that_does_not_divide_carries_its_remainder_over(place, tmp_path):
    config = config_for(place, tmp_path, run={"steps": 5})
    reports = list(run(config))
    drawn = [group.sample.id for report in reports for group in report.groups]
    assert sorted(drawn[:5]) == sorted(drawn[5:]) == list("01234")
    assert reports[-1].metrics["epoch"] == 2.0


def test_a_run_asked_to_stop_before_its_first_step_has_trained_nothing(place, tmp_path):
    said = []
    config = config_for(place, tmp_path, eval={"every": 1})
    reports = list(run(config, watchers=Watchers(should_stop=lambda: True, say=said.append)))
    assert [report.step for report in reports] == [0]
    assert any("nothing was trained yet" in text for text in said)
    assert [report.step for report in run(config, resume=True)] == [0, 1, 2, 3, 4]


def test_a_second_writer_is_refused(place, tmp_path):  # P8
    config = config_for(place, tmp_path, run={"save_every": 1})
    first = run(config)
    next(first)
    with pytest.raises(CheckpointError, match="being written"):
        list(run(config, resume=True))
    first.close()


def test_a_new_run_does_not_overwrite_an_old_one(place, tmp_path):
    config = config_for(place, tmp_path, run={"steps": 1})
    list(run(config))
    with pytest.raises(ConfigError, match="not empty"):
        list(run(config))


def test_a_model_with_odd_generation_defaults_is_trained_and_exported(place, tmp_path):  # B33
    """Defaults that transformers warns about, or would sample by: they neither win nor stop the export."""
    shutil.copytree(place / "model", tmp_path / "odd")
    path = tmp_path / "odd" / "generation_config.json"
    defaults = json.loads(path.read_text()) | {"temperature": 0.01, "repetition_penalty": 1.5, "top_p": 0.1}
    path.write_text(json.dumps(defaults))
    config = config_for(place, tmp_path / "runs", model={"path": str(tmp_path / "odd")}, run={"steps": 1})
    [report] = run(config)
    assert number(report, "completions/num_distinct") > 1
    assert number(report, "sampling/sampling_logp_difference/max") < 1e-4
    again = json.loads((tmp_path / "runs" / "toy" / "final" / "generation_config.json").read_text())
    assert again["repetition_penalty"] == 1.5
    assert math.isclose(again["temperature"], 0.01)
