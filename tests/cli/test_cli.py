"""The command line: verbs on a recorded run, exit codes, and what stays away from torch."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from muster.cli import main
from muster.cli.evaluate import config_of_model, config_of_run
from muster.cli.flags import as_mapping, gather_overrides
from muster.cli.generate import Turns
from muster.cli.stopping import SecondSignal, Stopping
from muster.cli.targets import model_of, run_of_checkpoint
from muster.config import fields, load
from muster.errors import ConfigError
from muster.records import Completion, GradingRequest, Sample
from muster.rewards import grade, load_rewards

Capture = pytest.CaptureFixture[str]


def test_read_only_verbs_never_import_torch(recorded: Path, tmp_path: Path):
    run, new = str(recorded), str(tmp_path / "new")
    calls = [["show", run], ["runs"], ["doctor", run], ["compare", run, run], ["config"], ["init", new]]
    program = (
        "import sys\nfrom muster.cli import main\n"
        f"for call in {calls!r}:\n"
        "    if (code := main(call)) or 'torch' in sys.modules: sys.exit(f'{call[0]} {code}')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "verb",
    [
        "train",
        "check",
        "eval",
        "generate",
        "export",
        "push",
        "runs",
        "show",
        "doctor",
        "compare",
        "regrade",
        "config",
        "init",
    ],
)
def test_every_verb_has_examples_in_its_help(verb: str, capsys: Capture):
    assert main([verb, "--help"]) == 0
    assert f"muster {verb}" in capsys.readouterr().out.partition("Examples")[2]


def test_flags_are_gathered_whatever_their_form():
    tokens = [
        "train",
        "run.toml",
        "--optim.lr",
        "2e-6",
        "--a.b=c=d",
        "--model.gradient_checkpointing",
        "--resume",
    ]
    assert gather_overrides(tokens) == [
        "train",
        "run.toml",
        "--section.key=optim.lr=2e-6",
        "--section.key=a.b=c=d",
        "--section.key=model.gradient_checkpointing=true",
        "--resume",
    ]
    assert gather_overrides(["--algo.entropy_coef", "-0.1"]) == ["--section.key=algo.entropy_coef=-0.1"]
    with pytest.raises(ConfigError, match=r"--a\.b is given twice: 1 and 2"):
        as_mapping(["a.b=1", "a.b=2"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "train"),
        (["train", "--resme"], "--resume"),
        (["train", "none.toml"], "none.toml: No such file"),
        (["train", "--optim.lrr", "1"], "did you mean optim.lr?"),
        (["config", "--optim.lr"], "--optim.lr has no value; allowed: a number, at least 0"),
        (["config", "--optim.lr", "--json"], "--optim.lr has no value"),
        (["config", "--model.lora", "--json"], "--model.lora has no value; allowed: a table"),
        (["config", "--optim.lr", "fast"], 'optim.lr is "fast"'),
        (["show", "no-such-run"], "no-such-run is no run"),
        (["generate", "smollm2-135-instruct"], "Did you mean 'smollm2-135m-instruct'?"),
        (["generate", "m", "--chat", "--raw"], "--chat"),
        (["eval", "m"], "data.path is missing"),
    ],
)
def test_wrong_usage_is_said_on_stderr_with_exit_code_2(arguments: list[str], said: str, capsys: Capture):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


@pytest.mark.parametrize("verb", ["generate", "show", "eval"])
def test_a_mistyped_run_is_answered_with_the_nearest(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    (tmp_path / "runs" / "sums-12").mkdir(parents=True)
    (tmp_path / "runs" / "sums-12" / "meta.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main([verb, "sum-12", *(["--data.path", "d.csv"] if verb == "eval" else [])]) == 2
    assert "Did you mean 'sums-12'?" in capsys.readouterr().err


def test_a_folder_that_can_not_be_written_is_said_in_a_line(tmp_path: Path, capsys: Capture):
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    assert main(["init", str(tmp_path / "taken" / "run")]) in (1, 2)
    said = capsys.readouterr().err
    assert "taken" in said
    assert "Traceback" not in said


def test_a_newer_format_is_a_failure_not_wrong_usage(tmp_path: Path, capsys: Capture):
    (tmp_path / "meta.json").write_text('{"schema_version": 9}', encoding="utf-8")
    assert main(["show", str(tmp_path)]) == 1
    assert "format 9" in capsys.readouterr().err


def test_a_run_is_shown_with_curves_samples_and_what_it_came_to(recorded: Path, capsys: Capture):
    assert main(["show", str(recorded)]) == 0
    out = capsys.readouterr().out
    assert "run_v1  step 4, finished, 21 s in steps" in out
    reward = next(line for line in out.splitlines() if line.startswith("reward "))
    assert reward.split() == ["reward", "0.025", "0.963", "0.025", "0.963", "▁▂▆█"]
    assert "held-out reward before (step 0): 0.05  (95 % interval -0.075 to 0.175)" in out
    assert "held-out reward after  (step 4): 0.925  (95 % interval 0.8 to 1.05)" in out
    assert "step 2: slot 1 had no signal" in out
    compared = out[out.index("held-out reward after") :]
    assert compared.count("Ada is 36") == 3, "the question is shown, not the rendered chat"
    assert f"muster generate {recorded}" in out


def test_the_proof_of_the_sampler_is_among_the_curves(recorded: Path, tmp_path: Path, capsys: Capture):
    folder = tmp_path / "proven"
    shutil.copytree(recorded, folder)
    lines = [{"step": step, "reward": 0.5, "sampling/mismatch": step * 1e-6} for step in (1, 2, 4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["show", str(folder)]) == 0
    [line] = [one for one in capsys.readouterr().out.splitlines() if one.startswith("sampling/mismatch")]
    assert line.split()[1:5] == ["1.00e-06", "4.00e-06", "1.00e-06", "4.00e-06"]


def test_the_time_of_a_run_is_split_by_phase(recorded: Path, tmp_path: Path, capsys: Capture):
    folder = tmp_path / "timed"
    shutil.copytree(recorded, folder)
    lines = [
        {"step": 0, "seconds": {"eval": 5.0, "sync": 1.0}, "tokens": 0, "tokens_per_second": {}},
        {"step": 1, "seconds": {"forward": 2.0, "sample": 3.0}, "tokens": 100, "tokens_per_second": {}},
        {"step": 2, "seconds": {"sample": 7.0, "old": 2.0}, "tokens": 50, "tokens_per_second": {}},
    ]
    (folder / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["show", str(folder)]) == 0
    out = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(out) if line.startswith("phase"))
    assert [line.split() for line in out[start : start + 6]] == [
        ["phase", "seconds", "a", "step", "share", "tokens/s"],
        ["sample", "10", "5", "50%", "15"],
        ["old", "2", "1", "10%", "25"],
        ["forward", "2", "1", "10%", "50"],
        ["sync", "1", "0.5", "5%"],
        ["eval", "5", "2.5", "25%"],
    ]
    assert main(["show", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["timings"] == lines


def test_a_step_and_a_group_are_shown_and_escaped(recorded: Path, capsys: Capture):
    assert main(["show", str(recorded), "--step", "3"]) == 0
    assert "0      6       0.5 0.7 0.2 0.7" in capsys.readouterr().out
    assert main(["show", str(recorded), "--step", "1", "--group", "0"]) == 0
    out = capsys.readouterr().out
    assert "\\x1b[2J\\x1b]0;owned\\x07[bold]not" in out
    assert not set("\x1b\x07\x00\u202e") & set(out)
    assert main(["show", str(recorded), "--group", "7"]) == 2
    assert "step 4 has groups 0 to 1" in capsys.readouterr().err


def test_json_of_a_run_is_whole_and_lossless(recorded: Path, capsys: Capture):
    assert main(["show", str(recorded), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [line["step"] for line in shown["metrics"]] == [0, 1, 2, 3, 4]
    assert main(["show", str(recorded), "--json", "--step", "1", "--group", "0"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    text = json.loads(out)["groups"][0]["rollouts"][0]["text"]
    assert text == "\x1b[2J\x1b]0;owned\x07[bold]not markup[/bold]\u202eevil\x00"


def test_a_run_that_is_being_written_is_shown(recorded: Path, tmp_path: Path, capsys: Capture):
    folder = tmp_path / "live"
    shutil.copytree(recorded, folder)
    shutil.rmtree(folder / "eval")
    (folder / "events.jsonl").write_bytes(b'{"time": "2026-01-02T03:04:05+00:00", "kind": "start"}\n{"ti')
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "rew')
    assert main(["show", str(folder)]) == 0
    assert "live  step 4, killed" in capsys.readouterr().out


def test_a_run_without_a_step_is_shown(recorded: Path, tmp_path: Path, capsys: Capture):
    shutil.copy(recorded / "meta.json", tmp_path)
    assert main(["show", str(tmp_path)]) == 0
    assert "step 0, killed" in capsys.readouterr().out


def test_a_folder_that_is_no_run_is_answered_with_the_files_to_train_by(tmp_path: Path, capsys: Capture):
    assert main(["train", str(tmp_path)]) == 2
    assert "it holds no config.toml. Name the TOML file to train by." in capsys.readouterr().err
    (tmp_path / "run.toml").touch()
    assert main(["train", str(tmp_path)]) == 2
    assert f"Name the TOML file to train by: {tmp_path / 'run.toml'}." in capsys.readouterr().err


def test_a_lone_evaluation_is_neither_before_nor_after(recorded: Path, tmp_path: Path, capsys: Capture):
    shutil.copytree(recorded, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines if line["step"]))
    assert main(["show", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "held-out reward (step " in out
    assert "before" not in out


def test_the_settings_are_printed_as_toml_with_every_field_explained(capsys: Capture):
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    assert [field.path for field in fields() if f"# {field.doc}" not in out] == []
    values = tomllib.loads(out)
    assert values["sampling"]["group_size"] == 8
    assert "lora" not in values["model"]


def test_the_printed_settings_of_a_run_load_as_the_same_run(recorded: Path, tmp_path: Path, capsys: Capture):
    assert main(["config", str(recorded / "config.toml"), "--model.lora.rank", "8"]) == 0
    path = tmp_path / "printed.toml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert load(path) == load(recorded / "config.toml", {"model.lora.rank": "8"})


def test_the_settings_as_json_hold_default_and_value(capsys: Capture):
    flags = [
        "--model.path",
        "m",
        "--data.path",
        "d",
        "--reward.use",
        "r",
        "--optim.lr",
        "0.5",
        "--algo.kl",
        "k2",
    ]
    assert main(["config", "--json", *flags]) == 0
    rows = {row["path"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["optim.lr"]["default"], rows["optim.lr"]["value"]) == (1e-6, 0.5)
    assert rows["algo.kl"]["value"] == {"use": "k2"}
    assert rows["model.path"]["is_required"] is True


def test_a_new_folder_holds_a_run_that_loads(tmp_path: Path, capsys: Capture):
    folder = tmp_path / "sums"
    assert main(["init", str(folder)]) == 0
    assert f"muster train {folder}/run.toml" in capsys.readouterr().out
    config = load(folder / "run.toml")
    assert config.reward.use == (f"{folder}/reward.py:reward",)
    assert config.data.path == f"{folder}/prompts.jsonl"
    names: dict[str, object] = {}
    exec((folder / "reward.py").read_text(encoding="utf-8"), names)
    reward = names["reward"]
    assert callable(reward)
    assert [reward(text, "12") for text in ("12", "It is 12.", "12 or 13", "none")] == [1.0, 0.5, 0.1, 0.0]
    assert main(["init", str(folder)]) == 2
    assert "run.toml, reward.py, prompts.jsonl, held_out.jsonl already" in capsys.readouterr().err


def test_nothing_is_written_over(tmp_path: Path):
    (tmp_path / "reward.py").write_text("mine", encoding="utf-8")
    assert main(["init", str(tmp_path)]) == 2
    assert (tmp_path / "reward.py").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "run.toml").exists()


def test_a_run_a_checkpoint_and_a_model_are_told_apart(recorded: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(recorded, folder)
    assert model_of("some/hub-id") == "some/hub-id"
    assert model_of(str(folder)) == str(folder)
    assert run_of_checkpoint(str(folder / "checkpoints/000002")) == folder
    assert run_of_checkpoint(str(folder / "final")) == folder
    assert run_of_checkpoint("some/hub-id") is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_leaves(number: signal.Signals):
    before = signal.getsignal(number)
    said: list[str] = []
    with Stopping(said.append) as stopping:
        assert stopping.exit_code == 0
        os.kill(os.getpid(), number)
        assert stopping.is_requested()
        assert "a second time leaves at once" in said[0]
        assert stopping.exit_code == 128 + number
        with pytest.raises(SecondSignal) as caught:
            os.kill(os.getpid(), number)
        assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) == before


def test_a_second_signal_is_no_failure_of_the_reward_that_it_interrupts():
    def interrupted(completion: str) -> float:
        os.kill(os.getpid(), signal.SIGINT)
        return 1.0

    sample = Sample(id="0", text="?")
    completion = Completion(ids=(5,), sampler_logprobs=(-1.0,), finish_reason="stop", version=0)
    request = GradingRequest(sample=sample, prompt_text="?", completion=completion, text="7", plain_text="7")
    with Stopping(lambda _: None), pytest.raises(SecondSignal):
        grade([request, request], load_rewards([interrupted]))


def test_a_terminal_of_another_encoding_shows_escapes(recorded: Path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "muster", "show", str(recorded)],
        env=environment,
        capture_output=True,
        check=True,
    )
    assert b"\\u2581" in done.stdout


def test_a_run_is_measured_on_other_data_by_naming_it(recorded: Path):
    plain = config_of_run(recorded, {"eval.group_size": "8"})
    assert (plain.data.eval_path, plain.eval.group_size) == ("people-held-out.jsonl", 8)
    other = config_of_run(recorded, {"data.path": "other.jsonl"})
    assert (other.data.path, other.data.has_eval) == ("other.jsonl", False)
    trained_on = config_of_run(recorded, {"data.path": plain.data.path})
    assert (trained_on.data.path, trained_on.data.has_eval) == ("people.jsonl", False)
    alone = config_of_model("m", {"data.path": "other.jsonl", "reward.use": "json_extraction"})
    assert (alone.model.path, alone.data.path, alone.data.has_eval) == ("m", "other.jsonl", False)


def test_a_conversation_grows_by_question_and_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\nWhy?\n"))
    turns = Turns("Be brief.")
    prompts = turns.prompts()
    assert [message["content"] for message in next(prompts)] == ["Be brief.", "Hello"]
    turns.answer("Hi.")
    assert [message["role"] for message in next(prompts)] == ["system", "user", "assistant", "user"]
    assert list(prompts) == []
