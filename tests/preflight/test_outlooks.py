"""What other machines' costs follow from: counted on shapes, against models that are really there."""

from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from muster.assemble import load_policy
from muster.config import Config
from muster.engines.base import Sampling
from muster.engines.decoding import SharedPrefixDecoder
from muster.errors import ConfigError
from muster.preflight import Preflight, look_ahead, preflight
from muster.preflight.outline import model_of, work_of
from muster.pretrained import load_tokenizer
from muster.quantized import QuantizedLinear
from muster.scaling import read_layouts
from tiny import save_tiny_model
from toy_run import config_for


@pytest.fixture(scope="module")
def found(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Preflight:
    """What a check of the toy run measured."""
    return preflight(config_for(place, tmp_path_factory.mktemp("check")), num_groups=2)


def quiet(_: str) -> None:
    """Says nothing."""


def policy_of(config: Config):
    return load_policy(config.model, load_tokenizer(config.model.path), seed=1, say=quiet)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma2"])
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_model_that_was_never_loaded_is_counted_as_the_one_that_was(
    family: str, lora: dict[str, object] | None, tmp_path: Path
):
    save_tiny_model(tmp_path / "model", family)
    targets = {"targets": ["c_attn", "c_proj"] if family == "gpt2" else ["q_proj", "down_proj"]}
    config = config_for(tmp_path, tmp_path, model={} if lora is None else {"lora": {**lora, **targets}})
    counted, policy = model_of(config, quiet), policy_of(config)
    trained = [param for _, param in policy.trainable()]
    assert counted.trained_params == sum(param.numel() for param in trained)
    assert counted.trained_tensors == len(trained)
    assert counted.weight_bytes == sum(4 * param.numel() for param in policy.model.parameters())
    assert counted.num_params == counted.weight_bytes // 4 - counted.adapter_params
    assert counted.shares_prompts == policy.packs
    assert counted.num_vocab == 259
    assert counted.state_bytes == pytest.approx(8 * counted.trained_params, rel=1e-3)


def test_layers_head_keys_and_attention_are_those_of_the_configuration(place: Path, tmp_path: Path):
    counted = model_of(config_for(place, tmp_path), quiet)
    # Two layers: queries and output 32 x 32, keys and values 32 x 16, three of 32 x 48; the head is tied.
    assert counted.layer_params == 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    assert counted.head_params == 259 * 32
    assert counted.num_params == counted.layer_params + counted.head_params + 5 * 32
    assert (counted.rest_params, counted.num_layers) == (259 * 32 + 32, 2)
    assert counted.cache_bytes == 4 * 2 * 2 * (8 + 8)
    assert counted.pair_flops == 2 * 2 * 4 * (8 + 8)
    assert counted.read_bytes == 4 * (counted.layer_params + counted.head_params)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_and_values_are_counted_as_a_rank_keeps_them(family: str, dtype: str, tmp_path: Path):
    save_tiny_model(tmp_path / "model", family)
    config = config_for(tmp_path, tmp_path, model={"dtype": dtype})
    counted, policy = model_of(config, quiet), policy_of(config)
    assert counted.compute == dtype
    decoder = SharedPrefixDecoder(policy, [(5, 6, 7)], Sampling(group_size=1, max_tokens=1), 1)
    with torch.no_grad():
        decoder.join([0])
    prompt = [tensor for layer in decoder.cache._prompts.values() for tensor in layer]  # pyright: ignore[reportPrivateUsage]
    assert 3 * counted.cache_bytes == sum(tensor.nbytes for tensor in prompt)
    assert 3 * counted.cache_numbers == sum(tensor.numel() for tensor in prompt)


def test_an_adapter_that_was_trained_is_counted_from_its_own_file(place: Path, tmp_path: Path):
    fresh = config_for(place, tmp_path, model={"lora": {"rank": 4, "targets": ["q_proj"]}})
    policy_of(fresh).model.save_pretrained(str(tmp_path / "adapter"))
    going_on = config_for(place, tmp_path, model={"adapter": str(tmp_path / "adapter")})
    assert asdict(model_of(going_on, quiet)) == asdict(model_of(fresh, quiet))
    with pytest.raises(ConfigError, match="holds no adapter_model"):
        model_of(config_for(place, tmp_path, model={"adapter": str(tmp_path / "none")}), quiet)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_weights_in_few_bits_take_what_they_really_take(place: Path, tmp_path: Path, kind: str):
    config = config_for(place, tmp_path, model={"quantize": kind, "lora": {"rank": 4}})
    counted, policy = model_of(config, quiet), policy_of(config)
    stored = [m.stored for m in policy.model.modules() if isinstance(m, QuantizedLinear)]
    few = sum(part.nbytes for weight in stored for part in weight.parts())
    whole = sum(4 * prod(param.shape) for param in policy.model.parameters())
    assert counted.weight_bytes == few + whole


def test_experts_of_which_a_token_takes_some_are_refused(place: Path, tmp_path: Path):
    save_tiny_model(tmp_path / "model", num_local_experts=8)
    with pytest.raises(ConfigError, match="8 experts"):
        model_of(config_for(tmp_path, tmp_path), quiet)


def test_the_work_of_a_step_is_that_of_the_configuration(place: Path, tmp_path: Path):
    plain = work_of(config_for(place, tmp_path), quiet)
    assert (plain.prompts, plain.group_size, plain.rollouts) == (2, 4, 8)
    assert (plain.prompt_tokens, plain.longest_prompt, plain.max_tokens) == (29.0, 29, 4)
    assert (plain.updates, plain.passes, plain.scored, plain.copies) == (1, 1, 0, 0)
    assert (plain.max_rows, plain.budget_tokens, plain.recomputes) == (128, 256, False)
    assert work_of(config_for(place, tmp_path, run={"layout": "shard"}), quiet).divides
    assert not plain.divides
    full = config_for(
        place,
        tmp_path,
        algo={
            "kl_coef": 0.1, "minibatches": 2, "passes": 3, "gate": {"use": "top_entropy", "share": 0.5},
        },
        sampling={"sync_every": 2},
        model={"gradient_checkpointing": True},
        engine={"options": {"max_rows": 16}},
    )  # fmt: skip
    work = work_of(full, quiet)
    # The old policy's pass, the reference's, and the gate's in each of three.
    assert (work.updates, work.passes, work.scored, work.copies) == (6, 3, 5, 3)
    assert (work.max_rows, work.recomputes) == (16, True)


def test_measured_paces_give_the_step_that_the_check_itself_predicts(
    place: Path, tmp_path: Path, found: Preflight
):
    config, costs = config_for(place, tmp_path), found.costs
    outlook = look_ahead(config, read_layouts("1,2"), [], lambda: found, quiet)
    assert outlook.is_measured
    one = {part.name: part.seconds for part in outlook.laid[0].step.parts}
    assert one["weights read"] + one["tokens sampled"] == pytest.approx(costs.sample_s)
    assert one["rewards"] == pytest.approx(costs.score_s)
    assert costs.update_s is not None
    assert costs.paces is not None
    assert one["optimizer"] == costs.paces.optimizer_s
    assert one["forward and backward"] + one["optimizer"] == pytest.approx(costs.update_s)
    assert outlook.laid[0].speedup == pytest.approx(1.0)
    names = {item.name: item.source for item in outlook.assumptions}
    assert names["completion"] == names["memory"] == "measured"
    assert "flops" not in names
    with pytest.raises(ConfigError, match="--assume flops has no use with --measured"):
        look_ahead(config, read_layouts("1"), ["flops=1e12"], lambda: found, quiet)


def test_a_layout_that_does_not_fit_is_said(place: Path, tmp_path: Path):
    config = config_for(place, tmp_path)
    assert look_ahead(config, read_layouts("1,4x8+2"), [], None, quiet).fits
    outlook = look_ahead(config, read_layouts("1"), ["memory=1e6"], None, quiet)
    assert not outlook.fits
    assert outlook.laid[0].memory.peak > 1e6
    divided = config_for(place, tmp_path, run={"layout": "shard"})
    with pytest.raises(ConfigError, match="Leave the servers out"):
        look_ahead(divided, read_layouts("1,2+1"), [], None, quiet)


def test_what_can_not_be_counted_is_refused_before_anything_is_measured(place: Path, tmp_path: Path):
    def measure() -> NoReturn:
        raise AssertionError("minutes of sampling")

    played = config_for(place, tmp_path, data={"environment": "calculator"}, reward={"use": "environment"})
    with pytest.raises(ConfigError, match=r"data\.environment has turns"):
        look_ahead(played, read_layouts("1"), [], measure, quiet)
    ahead = config_for(place, tmp_path, engine={"ahead": 1})
    with pytest.raises(ConfigError, match=r"--devices names 4, and engine\.ahead is 1"):
        look_ahead(ahead, read_layouts("1,4"), [], measure, quiet)
    served = {"kind": "vllm", "ahead": 1, "options": {"urls": ["http://127.0.0.1:8000"]}}
    assert look_ahead(config_for(place, tmp_path, engine=served), read_layouts("4+1"), [], None, quiet).fits
    with pytest.raises(ConfigError, match="netwrk"):
        look_ahead(config_for(place, tmp_path), read_layouts("1"), ["netwrk=1"], measure, quiet)


def test_sampling_ahead_holds_two_copies_of_the_weights_a_step(place: Path, tmp_path: Path):
    before, after = (work_of(config_for(place, tmp_path, engine={"ahead": n}), quiet) for n in (0, 2))
    assert after.copies - before.copies == 4


def test_counting_holds_no_weights(place: Path, tmp_path: Path):
    save_tiny_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    assert model_of(config_for(tmp_path, tmp_path), quiet).num_params > 0
    assert torch.get_default_device() == torch.device("cpu")
