"""Scripts and arguments of TRL and Unsloth as runs: by values, with a line for all that is left over."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.algo.build import build
from muster.cli import main
from muster.config import load
from muster.errors import ConfigError
from muster.fromtrl import GRPO_OPTIONS, UNSLOTH_OPTIONS, Converted, Found, converted, read
from muster.fromtrl.options import EARLIER_OPTIONS
from trl_scripts import GUIDE

RECORDED: dict[str, object] = json.loads(
    Path(__file__).with_name("grpo_config_1.16.0.json").read_text(encoding="utf-8")
)
"""The options of trl 1.16.0's GRPOConfig with their defaults, as `dataclasses.fields` lists them."""


def of_script(folder: Path, text: str) -> Converted:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    return converted(read(path))


def of_args(**arguments: object) -> Converted:
    return converted(Found(source="args.json", calls={"GRPOConfig": arguments}))


def test_the_guides_script_becomes_the_run_it_describes(tmp_path):
    found = of_script(tmp_path, GUIDE)
    assert tomllib.loads(found.toml) == {
        "model": {
            "path": "HuggingFaceTB/SmolLM2-135M-Instruct",
            "quantize": "nf4",
            "max_tokens": 4096,
            "gradient_checkpointing": True,
            "lora": {
                "rank": 32,
                "alpha": 32.0,
                "targets": [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")],
            },
        },
        "data": {"path": "prompts.csv", "max_prompt_tokens": 3584},
        "reward": {"use": ["rewards.py:json_reward", "my_rewards:length_reward"]},
        "sampling": {"prompts_per_step": 1, "group_size": 16, "max_tokens": 512},
        "algo": {
            "recipe": "grpo",
            "advantage": "zscore",
            "truncated": "score",
            "correction": "none",
            "objective": {"use": "clip", "low": 0.2, "high": 0.2},
            "weights": "by_token",
        },
        "optim": {
            "name": "paged_adamw_8bit",
            "options": {"betas": [0.9, 0.99], "eps": 1e-8},
            "lr": 5e-6,
            "weight_decay": 0.1,
            "max_grad_norm": 0.1,
            "schedule": "cosine",
            "warmup": 0.1,
        },
        "run": {"steps": 100, "seed": 3407, "save_every": 50, "name": "outputs"},
    }
    told = "\n".join(found.report)
    for part in (
        "(fast_inference=True, gpu_memory_utilization=0.6): vLLM would sample on the base in full precision",
        "bf16=torch.cuda.is_bf16_supported()) is computed there",
        "repetition_penalty=1.1): none: it would make the sampler another policy",
        "move it from train.py to rewards.py",
    ):
        assert part in told
    assert all(f"# - {line}" in found.toml for line in found.report)


def test_vllm_beside_a_base_in_few_bits_is_told_and_left_out():
    bits = {"load_in_4bit": True}
    for mode in ("colocate", "server"):
        grpo = {"use_vllm": True, "vllm_mode": mode}
        found = converted(Found(source="a.py", calls={"GRPOConfig": grpo, "BitsAndBytesConfig": bits}))
        assert (found.config.engine.kind, found.config.model.quantize) == ("local", "nf4")
        assert tomllib.loads(found.toml)["algo"]["correction"] == "none"
        assert any("use_vllm=True): vLLM would sample on the base in full" in line for line in found.report)


def test_fast_inference_of_unsloth_is_vllm_in_the_process_of_the_run(tmp_path):
    found = of_script(tmp_path, GUIDE.replace("load_in_4bit=True", "load_in_4bit=False"))
    values = tomllib.loads(found.toml)
    assert values["engine"] == {"kind": "vllm_inside", "options": {"memory_share": 0.6, "sleep": False}}
    assert values["algo"]["correction"] == {
        "use": "mask_outside",
        "low": 0.0,
        "high": 3.0,
        "level": "sequence",
    }
    assert "quantize" not in values["model"]
    plain = GUIDE.replace("load_in_4bit=True", "load_in_4bit=False").replace("fast_inference=True,", "")
    found = of_script(tmp_path, plain)
    assert found.config.engine.kind == "local"
    assert any("gpu_memory_utilization=0.6" in line for line in found.report)


def test_the_defaults_of_trl_are_written_out():
    values = tomllib.loads(of_args().toml)
    assert values["sampling"] == {"prompts_per_step": 1, "group_size": 8, "max_tokens": 512}
    assert values["run"] == {"epochs": 3, "seed": 42, "save_every": 500, "name": "trl-run"}
    assert values["optim"]["schedule"] == "linear"
    assert values["optim"]["lr"] == 1e-6
    assert values["algo"]["weights"] == "by_token"
    assert values["model"]["gradient_checkpointing"] is True
    # What `of_args()` takes for defaults is what TRL has.
    given = {name: value for name, value in RECORDED.items() if value is not None}
    assert of_args(**given).config == of_args(output_dir=None).config


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"loss_type": "grpo"}, {"weights": "by_sequence"}),
        ({"loss_type": "dr_grpo", "scale_rewards": False}, {"weights": "by_limit", "advantage": "center"}),
        ({"scale_rewards": "batch"}, {"advantage": "batch_scaled"}),
        (
            {"epsilon": 0.1, "epsilon_high": 0.28, "delta": 1.5},
            {"objective": {"use": "clip", "low": 0.1, "high": 0.28, "cap": 1.5}},
        ),
        (
            {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
            {"objective": {"use": "gspo", "low": 3e-4, "high": 4e-4}},
        ),
        (
            {"loss_type": "luspo", "importance_sampling_level": "sequence"},
            {"objective": {"use": "gspo", "low": 0.2, "high": 0.2}, "weights": "by_sum"},
        ),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"objective": {"use": "cispo", "cap": 5.0}}),
        (
            {"loss_type": "sapo", "sapo_temperature_neg": 1.1},
            {
                "objective": {"use": "sapo", "tau_positive": 1.0, "tau_negative": 1.1},
                "weights": "by_sequence",
            },
        ),
        (
            {"loss_type": "vespo", "vespo_k_neg": 2.5},
            {
                "objective": {
                    "use": "vespo",
                    "k_positive": 2.0,
                    "lambda_positive": 3.0,
                    "k_negative": 2.5,
                    "lambda_negative": 2.0,
                },
                "weights": "by_token",
            },
        ),
        ({"beta": 0.04}, {"kl_coef": 0.04, "kl": {"use": "k3", "ratio": "differentiable"}}),
        ({"beta": 0.04, "use_bias_correction_kl": False}, {"kl": {"use": "k3", "ratio": "none"}}),
        ({"top_entropy_quantile": 0.2}, {"gate": {"use": "top_entropy", "share": 0.2}}),
        (
            {"off_policy_mask_threshold": 0.5},
            {"gate": {"use": "off_policy_sequence", "max_drift": 0.5}},
        ),
        (
            {"use_vllm": True},
            {"correction": {"use": "mask_outside", "low": 0.0, "high": 3.0, "level": "sequence"}},
        ),
        (
            {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"},
            {"correction": {"use": "truncate", "cap": 3.0, "level": "token"}},
        ),
        ({"mask_truncated_completions": True}, {"truncated": "mask"}),
        ({"num_iterations": 2, "steps_per_generation": 4}, {"passes": 2, "minibatches": 4}),
    ],
)
def test_a_loss_of_trl_is_the_same_choices_here(arguments, expected):
    algo = tomllib.loads(of_args(**arguments).toml)["algo"]
    assert {name: algo[name] for name in expected} == expected
    axes = ("advantage", "objective", "correction", "gate", "kl", "weights")
    build("grpo", {axis: algo[axis] for axis in axes if axis in algo})


@pytest.mark.parametrize(
    ("arguments", "section", "expected"),
    [
        ({"optim": "adamw_bnb_8bit"}, "optim", {"name": "adamw_8bit"}),
        ({"optim": "sgd", "max_grad_norm": 0}, "optim", {"name": "sgd", "max_grad_norm": 1e9}),
        ({"warmup_steps": 0.25}, "optim", {"warmup": 0.25}),
        ({"warmup_steps": 7}, "optim", {"warmup": 7}),
        ({"warmup_steps": 20, "steps_per_generation": 8, "num_iterations": 2}, "optim", {"warmup": 2}),
        ({"report_to": ["wandb", "tensorboard"]}, "run", {"trackers": ["wandb", "tensorboard"]}),
        (
            {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
            "optim",
            {"schedule": "cosine", "final_fraction": 0.1},
        ),
        ({"max_steps": 10, "num_iterations": 4}, "run", {"steps": 3}),
        ({"save_strategy": "no"}, "run", {}),
        (
            {"output_dir": "out/first", "save_total_limit": 5},
            "run",
            {"dir": "out", "name": "first", "keep": 5},
        ),
        ({"max_completion_length": 8000}, "model", {"max_tokens": 16000}),
        ({"bf16": True}, "model", {"dtype": "bfloat16"}),
        ({"top_k": 20, "min_p": 0.1}, "sampling", {"top_k": 20, "min_p": 0.1}),
        ({"chat_template_kwargs": {"a": False}}, "data", {"chat_template_kwargs": {"a": False}}),
        (
            {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5, "vllm_enable_sleep_mode": True},
            "engine",
            {"kind": "vllm_inside", "options": {"memory_share": 0.5, "sleep": True}},
        ),
        (
            {"use_vllm": True},
            "engine",
            {"kind": "vllm_inside", "options": {"memory_share": 0.3, "sleep": False}},
        ),
        (
            {"use_vllm": True, "vllm_mode": "server", "vllm_server_port": 8001},
            "engine",
            {"kind": "vllm", "options": {"urls": ["http://127.0.0.1:8001"], "patience_s": 240.0}},
        ),
        (
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "num_generations": 4},
            "sampling",
            {"prompts_per_step": 8, "group_size": 4},
        ),
    ],
)  # fmt: skip
def test_other_arguments_are_their_counterparts(arguments, section, expected):
    values = tomllib.loads(of_args(**arguments).toml)[section]
    assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sync_ref_model": True}, "GRPOConfig(sync_ref_model=True): none: the reference is the policy"),
        ({"learning_rat": 1e-5}, "GRPOConfig(learning_rat=1e-05) is no option that is known here. Did you"),
        ({"optim": "lion_8bit"}, "GRPOConfig(optim='lion_8bit') has no counterpart; adamw is written"),
        ({"lr_scheduler_type": "polynomial"}, "'polynomial') has no counterpart; linear is written"),
        ({"num_train_epochs": 1.5}, "epochs are whole here; 2 is written"),
        ({"num_generations": 6}, "doesn't hold whole groups of num_generations = 6; 1 prompts"),
        ({"eval_strategy": "steps"}, "name held-out data as data.eval_path"),
        ({"generation_kwargs": {"num_beams": 2}}, "{'num_beams': 2}) has no counterpart"),
        ({"report_to": "mlflow"}, "GRPOConfig(report_to='mlflow') has no counterpart: trackers are wandb"),
        ({"learning_rate": "fast"}, "(learning_rate='fast') is no number; 1e-06 is written"),
    ],
)
def test_what_cannot_be_carried_over_is_told(arguments, says):
    assert any(says in line for line in of_args(**arguments).report), of_args(**arguments).report


def test_of_two_calls_the_first_counts_and_the_other_is_told(tmp_path):
    found = of_script(
        tmp_path,
        'train = load_dataset("openai/gsm8k", "main", split="train")\n'
        'held_out = load_dataset("openai/gsm8k", "main", split="test")\n'
        'trainer = GRPOTrainer(model="m", train_dataset=train, args=GRPOConfig())\n',
    )
    assert tomllib.loads(found.toml)["data"]["split"] == "train"
    assert (
        "load_dataset on line 2 is not the first of its kind: the first one's arguments are written"
        in found.report
    )


def test_a_plain_script_with_peft_and_its_names_is_read(tmp_path):
    found = of_script(
        tmp_path,
        "import trl\nfrom peft import LoraConfig\nfrom transformers import BitsAndBytesConfig\n"
        "settings = {'beta': 0.1, 'seed': 5}\nbits = BitsAndBytesConfig(load_in_8bit=True)\n"
        "lora = LoraConfig(r=16, lora_alpha=8, use_rslora=True, lora_dropout=0.1)\n"
        "steps = 5\nsteps = 6\n"
        "trainer = trl.GRPOTrainer('owner/model', [], peft_config=lora, callbacks=[print],\n"
        "    args=trl.GRPOConfig('out', max_steps=steps, **settings))\n",
    )
    values = tomllib.loads(found.toml)
    assert values["model"]["path"] == "owner/model"
    assert values["model"]["quantize"] == "int8"
    # rsLoRA scales by alpha / sqrt(rank): 8 / 4 = 2 = 32 / 16.
    assert values["model"]["lora"] == {"rank": 16, "alpha": 32.0, "targets": ["q_proj", "v_proj"]}
    assert values["algo"]["kl_coef"] == 0.1
    assert values["run"]["seed"] == 5
    assert values["run"]["name"] == "out"
    assert "epochs" in values["run"]
    told = "\n".join(found.report)
    assert "max_steps=steps) is computed there" in told
    assert "lora_dropout=0.1" in told
    assert "callbacks" in told


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", "[1]", "holds a list"),
        ("a.json", "{", "is not JSON"),
        ("a.py", "x = (", "is not Python"),
        ("a.py", "print('hello')", "calls none of GRPOConfig"),
        ("a.json", '{"num_generations": 1}', "sampling.group_size is 1"),
    ],
)
def test_what_is_no_script_is_refused(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        converted(read(tmp_path / name))
    assert says in str(caught.value)
    with pytest.raises(ConfigError, match="can't be read"):
        read(tmp_path / "nothing.py")


@given(
    st.dictionaries(
        st.sampled_from(sorted(RECORDED)),
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
            st.lists(st.integers(), max_size=2),
            st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_no_arguments_end_in_anything_but_a_run_or_an_error_of_ours(arguments):
    try:
        found = of_args(**arguments)
    except ConfigError:
        return
    assert tomllib.loads(found.toml)["sampling"]["group_size"] >= 2


def test_every_option_of_the_recorded_version_is_known_and_on_the_page():
    assert list(GRPO_OPTIONS) == list(RECORDED)
    assert all(text.startswith("none") or "`" in text for text in GRPO_OPTIONS.values())
    page = (Path(__file__).parents[2] / "docs" / "coming-from-trl.md").read_text(encoding="utf-8")
    for options in (GRPO_OPTIONS, EARLIER_OPTIONS, UNSLOTH_OPTIONS):
        assert [name for name, text in options.items() if f"| `{name}` | {text} |\n" not in page] == []


def test_the_verb_writes_a_file_that_loads(tmp_path, capsys):
    (tmp_path / "train.py").write_text(GUIDE)
    assert main(["init", str(tmp_path / "run"), "--from-trl", str(tmp_path / "train.py")]) == 0
    told = capsys.readouterr().out
    assert "To look at:" in told
    assert "repetition_penalty" in told
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.toml"]
    config = load(tmp_path / "run" / "run.toml")
    assert config.optim.name == "paged_adamw_8bit"
    assert config.run.steps == 100
    assert UNSLOTH_OPTIONS["load_in_4bit"].startswith('`model.quantize = "nf4"`')
