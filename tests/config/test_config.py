"""The configuration: what is read, what is resolved, what is refused and how."""

import subprocess
import sys
from pathlib import Path

import pytest

from muster.config import (
    Config,
    compare,
    fields,
    from_mapping,
    is_name,
    load,
    minutes_of,
    reward_names,
    to_toml,
)
from muster.errors import ConfigError

SMALL = '[model]\npath = "m"\n[data]\npath = "d"\n[reward]\nuse = "char_count"\n'
FLAGS = {"model.path": "m", "data.path": "d", "reward.use": "char_count"}


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def lines_of(folder: Path, text: str, flags: dict[str, str] | None = None) -> list[str]:
    """The lines of the one error that this file gives."""
    with pytest.raises(ConfigError) as caught:
        load(write(folder, text), flags)
    return str(caught.value).splitlines()


def test_a_run_can_be_made_from_flags_alone():
    config = load(None, {**FLAGS, "optim.lr": "2e-6", "sampling.stop": '["a", "b"]', "model.lora.rank": "8"})
    assert (config.model.path, config.reward.use, config.optim.lr) == ("m", ("char_count",), 2e-6)
    assert config.sampling.stop == ("a", "b")
    assert config.model.lora is not None
    assert config.model.lora.rank == 8


def test_flags_override_the_file_and_null_takes_its_value_away(tmp_path: Path):
    path = write(tmp_path, SMALL + "[run]\nepochs = 3\nseed = 1\n[optim]\nlr = 1e-3\n")
    config = load(path, {"optim.lr": "1", "run.epochs": "null", "run.steps": "7", "run.seed": "null"})
    assert (config.optim.lr, config.run.epochs, config.run.steps, config.run.seed) == (1.0, None, 7, 3407)


def test_a_run_without_a_length_has_one_hundred_steps():
    assert load(None, FLAGS).run.steps == 100
    assert load(None, {**FLAGS, "run.epochs": "2"}).run.steps is None


@pytest.mark.parametrize(
    ("text", "value"), [("12", "12"), ("true", "true"), ('"12"', "12"), ("a = 1", "a = 1")]
)
def test_a_field_of_text_takes_a_flag_as_it_stands(text: str, value: str):
    assert load(None, {**FLAGS, "data.system": text}).data.system == value


def test_a_flag_with_a_line_break_brings_no_key_of_its_own():
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        load(None, {**FLAGS, "optim.lr": "1\nother = 2"})


def test_a_parameter_keeps_the_function_that_the_file_chose_by_name(tmp_path: Path):
    path = write(tmp_path, SMALL + '[algo]\nobjective = "clip"\n')
    objective = load(path, {"algo.objective.high": "0.28"}).algo.objective
    assert objective is not None
    assert (objective.use, objective.params) == ("clip", {"high": 0.28})


def test_every_optional_field_given_as_none_behaves_as_absent():  # B66
    plain = from_mapping({"model": {"path": "m"}, "data": {"path": "d"}, "reward": {"use": "r"}})
    tables: dict[str, dict[str, object]] = {name: {} for name in Config.model_fields}
    for field in fields():
        section, name = field.path.split(".")[:2]
        tables[section][name] = None
    tables["model"]["path"], tables["data"]["path"], tables["reward"]["use"] = "m", "d", "r"
    assert from_mapping(tables) == plain


def test_the_resolved_configuration_loads_as_an_equal_one(tmp_path: Path):
    flags = {
        **FLAGS,
        "data.system": 'quote " backslash \\ line\nbreak \x7f tab\t',
        "data.chat_template_kwargs": '{ think = false, "odd key" = [1, 2.5, "x"], at = 2026-01-02 }',
        "algo.objective": '{ use = "clip", high = 0.28 }',
        "algo.kl": "k2",
        "model.lora": "{}",
        "reward.options.char_count": '{ char = "." }',
        "run.name": "größe 1",
        "optim.lr": "1e-30",
    }
    config = load(None, flags)
    assert load(write(tmp_path, to_toml(config))) == config


def test_paths_are_found_beside_the_file_then_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").mkdir()
    (tmp_path / "here").mkdir()
    for name in ("file/a.csv", "here/a.csv", "here/b.csv", "file/grade.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path / "here")
    path = write(
        tmp_path / "file",
        '[model]\npath = "some/hub-id"\n[data]\npath = "a.csv"\neval_path = "b.csv"\n'
        '[reward]\nuse = ["grade.py:exact", "char_count"]\n',
    )
    config = load(path)
    assert config.model.path == "some/hub-id"
    assert config.data.path == str(tmp_path / "file/a.csv")
    assert config.data.eval_path == str(tmp_path / "here/b.csv")
    assert config.reward.use == (f"{tmp_path}/file/grade.py:exact", "char_count")
    assert load(path, {"data.path": "a.csv"}).data.path == str(tmp_path / "here/a.csv")


def test_a_key_given_twice_is_refused_with_its_line(tmp_path: Path):  # B69
    (line,) = lines_of(tmp_path, SMALL + "[optim]\nlr = 1e-3\nlr = 1e-4\n")
    assert line.endswith("run.toml: line 9: lr = 1e-4 names what is given before; keep one of the two.")


def test_a_file_that_is_missing_or_not_utf8_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.toml: No such file or directory"):
        load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'x = "\xff"')
    with pytest.raises(ConfigError, match=r"latin\.toml: byte 5 is not UTF-8"):
        load(tmp_path / "latin.toml")


def test_a_byte_order_mark_is_no_error(tmp_path: Path):
    (tmp_path / "bom.toml").write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load(tmp_path / "bom.toml").model.path == "m"


BAD = [
    # (lines added to a file that is right, what its one line of error must hold)
    ("[optim]\nlr = 'fast'", ["optim.lr", '"fast"', "a number"]),
    ("[optim]\nlr = -1.0", ["optim.lr", "-1.0", "at least 0"]),
    ("[optim]\nlr = nan", ["optim.lr", "nan", "a number"]),
    ("[optim]\nlr = true", ["optim.lr", "true", "a number"]),
    ("[optim]\nlrr = 0.1", ["optim.lrr", "0.1", "did you mean optim.lr?"]),
    ("[optim]\ntemperature = 2.0", ["optim.temperature", "2.0", "did you mean sampling.temperature?"]),
    ("[optim]\nfrobnicate = 1", ["optim.frobnicate", "1", "known here: name, options, lr"]),
    ("[optin]\nlr = 0.1", ["optin", "lr", "did you mean optim?"]),
    ("[optim]\nbetas = [0.9, 0.99]", ["optim.betas", "has moved: write optim.options.betas = [0.9, 0.99]"]),
    ("[optim]\neps = 1e-6", ["optim.eps", "has moved: write optim.options.eps = 1e-06"]),
    ("[optim]\nschedule = 'linaer'", ["optim.schedule", '"linaer"', '"constant" or "linear" or "cosine"']),
    ("[optim]\nwarmup = 1.0", ["optim.warmup", "1.0", "below 1"]),
    ("[optim]\nwarmup = -1", ["optim.warmup", "-1", "at least 0"]),
    ("[optim]\nwarmup_steps = 5", ["optim.warmup_steps", "has moved: write optim.warmup = 5"]),
    ("[optim]\nwarmup_ratio = 0.1", ["optim.warmup_ratio", "0.1", "has moved: write optim.warmup = 0.1"]),
    ("[optim]\nfinal_fraction = 0.1", ["optim.final_fraction", "0.1", "optim.schedule"]),
    ("[optim]\nmax_grad_norm = 0", ["optim.max_grad_norm", "0", "above 0"]),
    ("[sampling]\ngroup_size = 1", ["sampling.group_size", "1", "at least 2", "compares", "4"]),
    ("[sampling]\ngroup_size = 4.0", ["sampling.group_size", "4.0", "a whole number"]),
    ("[sampling]\ntemperature = 0", ["sampling.temperature", "0", "above 0"]),
    ("[sampling]\ntop_p = 1.5", ["sampling.top_p", "1.5", "at most 1"]),
    ("[sampling]\nstop = 'x'", ["sampling.stop", '"x"', "a list of texts"]),
    ("[sampling]\nstop = ['x']\nignore_eos = true", ["sampling.stop", '["x"]', "ignore_eos"]),
    ("[sampling]\nmax_tokens = 5000", ["sampling.max_tokens", "5000", "4096", "10000"]),
    ("[sampling]\nignore_eos = 'yes'", ["sampling.ignore_eos", '"yes"', "true or false"]),
    (
        "[sampling]\nprompts_per_step = 3\ngroup_size = 4\n[algo]\nminibatches = 13",
        ["algo.minibatches", "13", "at most 12", "prompts_per_step 3", "group_size 4", "minibatches = 4"],
    ),
    ("[algo]\nkl_in = 'reward'", ["algo.kl_in", '"reward"', "kl_coef = 0.01"]),
    ("[algo]\nobjective = { low = 0.2 }", ["algo.objective", "{ low = 0.2 }", 'use = "name"']),
    ("[algo]\nobjective = 3", ["algo.objective", "3", "a name"]),
    ("[algo]\ntruncated = 'score'\noverlong_zone = 9", ["algo.overlong_zone", "9", '"penalize"', '"score"']),
    ("[algo]\noverlong_zone = 300", ["algo.overlong_zone", "300", "256"]),
    ("[algo]\nkl_coef = -0.1", ["algo.kl_coef", "-0.1", "at least 0"]),
    ("[algo]\npasses = 0", ["algo.passes", "0", "at least 1"]),
    ("[model.lora]\ndropout = 0.1", ["model.lora.dropout", "0.1", "sampled"]),
    ("[model.lora]\nrnak = 8", ["model.lora.rnak", "8", "did you mean model.lora.rank?"]),
    ("[model.lora]\ntargets = []", ["model.lora.targets", "[]", "not empty"]),
    ("[eval]\nevery = 5", ["eval.every", "5", "data.eval_path"]),
    ("[eval]\nmax_tokens = 4096", ["eval.max_tokens", "4096", "less than model.max_tokens"]),
    ("[run]\nsteps = 5\nepochs = 2", ["run.epochs", "2", "run.steps, which is 5"]),
    ("[run]\nname = '../x'", ["run.name", '"../x"', "a name of 1 to 100 characters"]),
    ("[run]\nseed = -1", ["run.seed", "-1", "at least 0"]),
    ("[run]\nkeep = 0", ["run.keep", "0", "at least 1"]),
    ("[run]\nsave_every = -1", ["run.save_every", "-1", 'minutes as text such as "10 min"']),
    ("[run]\nsave_every = true", ["run.save_every", "true", "steps as a whole number"]),
    ("[run]\nsave_every = '5'", ["run.save_every", '"5"', "10 min"]),
    ("[run]\nsave_every = '0 min'", ["run.save_every", '"0 min"', "10 min"]),
    ("[run]\non_full_disk = 'wait'", ["run.on_full_disk", '"wait"', '"stop" or "go_on"']),
    ("[engine]\nkind = 'vlm'", ["engine.kind", '"vlm"', '"local"']),
    ("[engine]\nmax_mismatch = 0", ["engine.max_mismatch", "0", "above 0"]),
]


@pytest.mark.parametrize(("added", "parts"), BAD, ids=[bad[0].replace("\n", " ") for bad in BAD])
def test_a_bad_setting_is_named_with_its_value_and_what_is_allowed(
    added: str, parts: list[str], tmp_path: Path
):  # P19
    (line,) = lines_of(tmp_path, SMALL + added)
    assert line.startswith(f"{tmp_path}/run.toml: ")
    assert [part for part in parts if part not in line] == []


BAD_FIRST_SECTIONS = [
    ({"model.path": "null"}, ["model.path is missing", "A hub id, a folder"]),
    ({"data.path": "null"}, ["data.path is missing", "CSV"]),
    ({"reward.use": "null"}, ["reward.use is missing", "file.py:function"]),
    ({"reward.use": "[]"}, ["reward.use", "[]", "not empty"]),
    ({"reward.use": '["a", "a"]'}, ["reward.use", '["a", "a"]', "each reward once"]),
    ({"reward.weights": "[1.0, 2.0]"}, ["reward.weights", "[1.0, 2.0]", "each of the 1 rewards", "[1.0]"]),
    ({"reward.options.other.x": "1"}, ["reward.options.other", "{ x = 1 }", "char_count"]),
    ({"reward.workers": "0"}, ["reward.workers", "0", "at least 1"]),
    ({"reward.time_limit_s": "0"}, ["reward.time_limit_s", "0", "above 0"]),
    ({"reward.time_limit_s": "inf"}, ["reward.time_limit_s", "inf"]),
    ({"reward.in_process": '["other"]'}, ["reward.in_process", '["other"]', "char_count"]),
    ({"reward.convention.other": "verl"}, ["reward.convention.other", '"verl"', "char_count"]),
    ({"reward.convention.char_count": "trl"}, ["reward.convention", '"trl"', '"batch"']),
    ({"reward.combine": "sum"}, ["reward.combine", '"sum"', '"sum_then_normalize"']),
    ({"data.raw": "true", "data.system": "Be brief."}, ["data.system", '"Be brief."', "data.raw"]),
    ({"data.raw": "true", "data.chat_template_kwargs.x": "1"}, ["data.chat_template_kwargs", "x = 1"]),
    ({"data.max_prompt_tokens": "4000"}, ["data.max_prompt_tokens", "4000", "3840", "4256"]),
    ({"data.eval_path": "d"}, ["data.eval_path", '"d"', "other data than data.path"]),
    ({"data.overlong": "cut"}, ["data.overlong", '"cut"', '"refuse" or "drop"']),
    ({"data.shuffle": "false"}, ["data.shuffle", "no setting any more", 'data.draw = "in_order"']),
    ({"model.dtype": "fp16"}, ["model.dtype", '"fp16"', '"float32" or "bfloat16"']),
    ({"model.adapter": "a", "model.lora.rank": "4"}, ["model.lora", "rank = 4", "model.adapter"]),
    ({"model": "3"}, ["model is 3", "a table"]),
    ({"model.path": "\ud800"}, ["model.path", "\\ud800", "UTF-8"]),
]


@pytest.mark.parametrize(
    ("flags", "parts"), BAD_FIRST_SECTIONS, ids=[str(list(bad[0])) for bad in BAD_FIRST_SECTIONS]
)
def test_a_bad_flag_is_named_with_its_value_and_what_is_allowed(flags: dict[str, str], parts: list[str]):
    with pytest.raises(ConfigError) as caught:
        load(None, {**FLAGS, **flags})
    assert str(caught.value).startswith("command line: ")
    assert [part for part in parts if part not in str(caught.value)] == []
    assert len(str(caught.value).splitlines()) == 1


def test_all_errors_come_at_once_and_a_rule_speaks_only_of_fields_that_are_right(tmp_path: Path):
    text = SMALL + '[optim]\nlr = "x"\nfinal_fraction = 0.5\n[sampling]\ngroup_size = "y"\n'
    lines = lines_of(tmp_path, text + "[algo]\nminibatches = 99\n", {"run.seed": "z"})
    assert [line.partition(": ")[2].split()[0] for line in lines] == [
        "sampling.group_size",
        "optim.lr",
        "run.seed",
        "optim.final_fraction",
    ]
    assert lines[2].startswith("command line: run.seed")


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "a\\b", "", ".", "..", "con", "NUL.txt", "x\0y", "x" * 300, "a\n", "-x"]
)
def test_what_could_be_a_path_or_a_device_is_no_name(name: str):  # B57
    assert not is_name(name)
    with pytest.raises(ConfigError, match=r"run\.name"):
        from_mapping(
            {"model": {"path": "m"}, "data": {"path": "d"}, "reward": {"use": "r"}, "run": {"name": name}}
        )


@pytest.mark.parametrize("name", ["a", "demo-1", "größe", "two words", "v1.2", "连续"])
def test_plain_words_are_names(name: str):
    assert is_name(name)


def test_there_are_at_most_ninety_fields_and_each_is_documented():
    assert len(fields()) <= 90
    assert [field.path for field in fields() if len(field.doc) < 10] == []
    assert len({field.path for field in fields()}) == len(fields())


def test_rewards_of_one_name_are_told_apart_by_number():
    use = '["a.py:reward", "b.py:reward", "char_count"]'
    config = load(None, {**FLAGS, "reward.use": use, "reward.options.reward_2.x": "1"})
    assert reward_names(config.reward.use) == ["reward", "reward_2", "char_count"]


def test_only_what_changes_results_hinders_a_resume():
    old = load(None, FLAGS)
    same = load(
        None,
        {
            **FLAGS,
            "run.name": "other",
            "run.steps": "200",
            "run.keep": "5",
            "eval.group_size": "4",
            "reward.workers": "1",
            "reward.time_limit_s": "5",
        },
    )
    assert not compare(old, same).changing
    other = load(None, {**FLAGS, "optim.lr": "2e-6", "model.lora": "{}", "algo.kl": "k2"})
    lines = compare(old, other).changing
    assert lines[:2] == ('algo.kl was absent and is "k2"', "optim.lr was 1e-06 and is 2e-06")
    assert lines[2] == "model.lora.rank was absent and is 32"


def test_a_run_that_ran_out_of_memory_goes_on_with_a_smaller_budget_and_never_a_larger_one():
    none, small, large = (
        load(None, {**FLAGS, **tokens})
        for tokens in ({}, {"run.budget_tokens": "64"}, {"run.budget_tokens": "128"})
    )
    assert compare(large, small).harmless == ("run.budget_tokens was 128 and is 64",)
    assert compare(none, small).harmless == ("run.budget_tokens was absent and is 64",)
    for was, now in ((small, large), (small, none)):
        assert [line.partition(" ")[0] for line in compare(was, now).changing] == ["run.budget_tokens"]


def test_a_falling_schedule_forbids_another_length():
    flags = {**FLAGS, "optim.schedule": "linear"}
    longer = load(None, {**flags, "run.steps": "200"})
    assert compare(load(None, flags), longer).changing == ("run.steps was 100 and is 200",)


def test_the_configuration_is_free_of_torch():
    code = "import muster.config, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "minutes"), [("10 min", 10.0), ("1.5min", 1.5), ("90 minutes", 90.0), ("7", None), ("min", None)]
)
def test_an_interval_is_steps_or_minutes(text: str, minutes: float | None):
    assert minutes_of(text) == minutes
    if minutes:
        assert load(None, {**FLAGS, "run.save_every": text}).run.save_every == text
    assert load(None, {**FLAGS, "run.save_every": "7"}).run.save_every == 7


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        ("warmup_steps = 3\nwarmup_ratio = 0.0", 3),
        ("warmup_steps = 0\nwarmup_ratio = 0.25", 0.25),
        ("warmup_steps = 0\nwarmup_ratio = 0.0", 0),
        ("warmup_steps = 0\nwarmup_ratio = 1.0", 1 - 2**-53),
    ],
)
def test_a_recorded_run_is_read_under_the_names_of_now(tmp_path: Path, recorded: str, now: float):
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "config.toml").write_text(f"{SMALL}[optim]\n{recorded}\n")
    assert load(tmp_path / "config.toml").optim.warmup == now


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        ("shuffle = true", "in_turn"),
        ("shuffle = false", "in_order"),
        ('shuffle = false\ndraw = "in_turn"', "in_order"),
        ('shuffle = true\ndraw = "by_signal"', "by_signal"),
    ],
)
def test_a_recorded_run_draws_as_it_did(tmp_path: Path, recorded: str, now: str):
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "config.toml").write_text(SMALL.replace("[data]\n", f"[data]\n{recorded}\n"))
    assert load(tmp_path / "config.toml").data.draw == now


def test_a_recorded_run_keeps_its_optimizer_s_options(tmp_path: Path):
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "config.toml").write_text(f"{SMALL}[optim]\nbetas = [0.9, 0.99]\neps = 1e-6\nlr = 0.5\n")
    optim = load(tmp_path / "config.toml").optim
    assert (optim.lr, dict(optim.options)) == (0.5, {"betas": (0.9, 0.99), "eps": 1e-6})
    # Every run's file holds them; those of nobody's choice are left out, as in a run of now.
    (tmp_path / "config.toml").write_text(f"{SMALL}[optim]\nbetas = [0.9, 0.999]\neps = 1e-8\n")
    assert dict(load(tmp_path / "config.toml").optim.options) == {}
