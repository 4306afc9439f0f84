"""Runs on a quantised base: resumed, evaluated, exported for the full base, and what is refused."""

import hashlib
import re
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import Linear
from transformers import AutoModelForCausalLM

from muster import pretrained
from muster.config import load
from muster.errors import CheckpointError, ConfigError
from muster.run import Watchers, run
from muster.store import read_events, read_metrics
from muster.using import evaluate, export
from tiny import save_tiny_model
from toy_run import config_for, content

KINDS = ("nf4", "int8")


def settings(kind: str) -> dict[str, dict[str, object]]:
    return {
        "model": {"quantize": kind, "lora": {"rank": 4}, "gradient_checkpointing": True},
        "optim": {"name": "paged_adamw_8bit", "options": {"betas": [0.9, 0.99]}, "lr": 1e-2},
        "algo": {"kl_coef": 0.05},
        "eval": {"every": 2, "group_size": 2},
        "run": {"save_every": 1, "keep": 9},
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A model large enough for 8-bit states, and a finished run on each kind of base."""
    folder = tmp_path_factory.mktemp("quantized")
    save_tiny_model(folder / "model", hidden_size=64, intermediate_size=1100)
    for kind in KINDS:
        said: list[str] = []
        list(run(config_for(folder, folder / kind, **settings(kind)), watchers=Watchers(say=said.append)))
        assert any(line.startswith(f"14 linear layers in {kind}: ") for line in said)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_stopped_and_resumed_equals_the_whole_and_its_checkpoints_hold_no_base(place, tmp_path, kind):
    config = config_for(place, tmp_path, **settings(kind))
    half = run(config)
    for report in half:
        if report.step == 2:
            half.close()
            break
    list(run(config, resume=True))
    first, second = content(place / kind / "toy"), content(tmp_path / "toy")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    saved = pretrained.load_model(str(place / "model"), dtype=torch.float32)
    assert len(first["checkpoints/000004/weights.safetensors"]) < saved.num_parameters()


def test_another_quantised_base_is_not_gone_on_from(place, tmp_path):
    shutil.copytree(place / "nf4" / "toy", tmp_path / "toy")
    config = config_for(place, tmp_path, **settings("nf4"))
    state = tmp_path / "toy" / "checkpoints" / "000004" / "state.json"
    shutil.rmtree(state.parent)
    path = tmp_path / "toy" / "checkpoints" / "000003"
    before = (path / "state.json").read_text()
    digest = re.search(r'"quantized": "(\w{32})"', before)
    assert digest is not None
    other = before.replace(digest[1], "0" * 32)
    (path / "state.json").write_text(other)
    manifest = path / "manifest.json"
    old, new = (hashlib.sha256(text.encode()).hexdigest() for text in (before, other))
    manifest.write_text(manifest.read_text().replace(old, new))
    with pytest.raises(CheckpointError, match=f"have the digest {'0' * 32}, and here they have {digest[1]}"):
        list(run(config, resume=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["", "final", "checkpoints/000004"])
def test_a_run_is_evaluated_on_its_quantised_base(place, kind, part):
    folder = place / kind / "toy"
    report = evaluate(load(folder / "config.toml"), model_path=folder / part)
    assert report.metrics["eval_reward"] == read_metrics(folder)[-1]["eval_reward"]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_export_is_the_adapter_on_the_full_base_and_says_how_far_that_is(place, tmp_path, kind):
    folder = place / kind / "toy"
    proof = export(load(folder / "config.toml"), folder, tmp_path / "merged", merge=True)
    assert proof.difference < 1e-3
    assert proof.from_quantized is not None
    assert (1e-7, 1e-9)[kind == "int8"] < proof.from_quantized < 1
    assert "on the quantised base, is another: its KL divergence from this one is " in str(proof)
    [end] = [event for event in read_events(folder) if event["kind"] == "end"]
    assert end["export_from_quantized"] == pytest.approx(proof.from_quantized, rel=0.5)

    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32)
    ids = torch.arange(3, 40)[None]
    adapted = PeftModel.from_pretrained(base, folder / "final")
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-4)
    name = "model.layers.0.self_attn.q_proj"
    layer = adapted.get_base_model().get_submodule(name)
    assert isinstance(layer, Linear)
    delta, full = layer.get_delta_weight("default"), layer.get_base_layer().weight
    assert isinstance(full, torch.Tensor)
    assert delta.any()
    assert torch.equal(merged.get_parameter(f"{name}.weight"), full + delta)
    for card in (folder / "final" / "README.md", tmp_path / "merged" / "README.md"):
        assert f"| trained on | the base in {kind}; this is its adapter on the base in full precision." in (
            card.read_text()
        )


def test_a_merged_model_is_not_quantised_again(place, tmp_path):
    folder = place / "nf4" / "toy"
    config = load(folder / "config.toml")
    export(config, folder, tmp_path / "merged", merge=True)
    report = evaluate(config, model_path=tmp_path / "merged")
    assert report.metrics["eval_reward"] is not None


def test_an_unknown_option_is_refused_before_the_model_is_looked_for(place, tmp_path):
    config = config_for(place, tmp_path, optim={"options": {"beta": [0.9, 0.99]}})
    with pytest.raises(ConfigError, match=r"optim\.options\.beta .* Did you mean 'betas'\?"):
        list(run(config.model_copy(update={"model": config.model.model_copy(update={"path": "/nowhere"})})))
