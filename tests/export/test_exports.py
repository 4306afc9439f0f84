"""What is exported: read back, compared, and absent where it differs."""

import json
import math
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from muster import pretrained
from muster.adapters import add_lora
from muster.errors import CheckpointError
from muster.export import export_model
from muster.policy import Policy
from tiny import ids_of, save_tiny_model, tiny_tokenizer

PROBES = [ids_of("what was trained"), ids_of("is what is read back")]
LINEAR = {
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "qwen2": ("q_proj", "v_proj", "down_proj"),  # with biases
}

peft_warns = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


def policy_from(folder: Path, targets=None) -> Policy:
    model = pretrained.load_model(str(folder), dtype=torch.float32)
    if targets:
        model = add_lora(model, rank=4, alpha=8.0, targets=targets, seed=1)
        with torch.no_grad():
            for name, param in model.named_parameters():
                if "lora_B" in name:
                    param.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(len(name)))
    return Policy(model, pretrained.load_tokenizer(str(folder)), max_tokens=128)


def logits_of(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([PROBES[0]])).logits


def write(policy, folder, base, **options):
    return export_model(
        policy, folder, card="# card", probes=PROBES, base_path=str(base), **options
    ).difference


def test_full_weights_reload_as_they_were_trained(tmp_path):
    policy = policy_from(save_tiny_model(tmp_path / "base"))
    with torch.no_grad():
        for _, param in policy.trainable():
            param.add_(0.01)
    assert write(policy, tmp_path / "out", tmp_path / "base") < 1e-5
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(logits_of(again), logits_of(policy.model), atol=1e-4, rtol=0)
    assert (tmp_path / "out" / "README.md").read_text() == "# card"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.get_vocab() == tiny_tokenizer().get_vocab()
    assert tokenizer.chat_template == tiny_tokenizer().chat_template
    assert pretrained.stop_ids(again, tokenizer) == {2}
    assert not (tmp_path / ".out.partial").exists()


def test_tied_embeddings_are_one_stored_tensor_and_one_after_loading(tmp_path):  # B60
    policy = policy_from(save_tiny_model(tmp_path / "base"))
    write(policy, tmp_path / "out", tmp_path / "base")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert [name for name in stored if "embed" in name or "lm_head" in name] == ["model.embed_tokens.weight"]
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert again.get_parameter("lm_head.weight") is again.get_parameter("model.embed_tokens.weight")


def test_every_stop_of_the_model_is_in_the_folder(tmp_path):  # B32
    base = save_tiny_model(tmp_path / "base")
    path = base / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [2, 9]}))
    policy = policy_from(base)
    write(policy, tmp_path / "out", base)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert pretrained.stop_ids(again, AutoTokenizer.from_pretrained(tmp_path / "out")) == {2, 9}


@peft_warns
@pytest.mark.parametrize("family", sorted(LINEAR))
def test_an_adapter_reloads_with_plain_peft(tmp_path, family):
    base = save_tiny_model(tmp_path / "base", family)
    policy = policy_from(base, LINEAR[family])
    assert write(policy, tmp_path / "out", base) < 1e-4
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    untrained = logits_of(plain)
    again = PeftModel.from_pretrained(plain, str(tmp_path / "out")).eval()
    torch.testing.assert_close(logits_of(again), logits_of(policy.model), atol=1e-4, rtol=0)
    assert float((logits_of(again) - untrained).abs().max()) > 0.01
    assert {path.suffix for path in (tmp_path / "out").iterdir()} <= {
        ".safetensors",
        ".json",
        ".md",
        ".jinja",
    }


@pytest.mark.parametrize(("family", "target"), [(f, t) for f, ts in sorted(LINEAR.items()) for t in ts])
def test_merged_weights_are_the_adapted_model(tmp_path, family, target):  # B59, B61
    base = save_tiny_model(tmp_path / "base", family)
    policy = policy_from(base, (target,))
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    assert write(policy, tmp_path / "out", base, merge=True) < 1e-4
    after = policy.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(logits_of(again), logits_of(policy.model), atol=1e-4, rtol=0)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    assert float((logits_of(again) - logits_of(plain)).abs().max()) > 1e-3
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    assert not any(
        "lora" in name or "base_layer" in name for name in load_file(tmp_path / "out" / "model.safetensors")
    )


def test_a_merge_of_weights_that_do_not_line_up_is_refused(tmp_path):  # B61
    base = save_tiny_model(tmp_path / "base")
    policy = policy_from(base, ("q_proj",))
    layer = policy.base.model.layers[0].self_attn.q_proj
    layer.lora_B["default"].weight.data = torch.zeros(7, 4)
    with pytest.raises(CheckpointError, match="can't be merged"):
        write(policy, tmp_path / "out", base, merge=True)
    assert not (tmp_path / "out").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]


@pytest.mark.parametrize("probe", [0, 1])
def test_a_model_that_reads_back_as_nan_is_not_written(tmp_path, probe):
    base = save_tiny_model(tmp_path / "base")
    policy = policy_from(base)
    with torch.no_grad():
        token = next(number for number in PROBES[probe] if number not in PROBES[1 - probe])
        policy.base.get_parameter("model.embed_tokens.weight")[token, 0] = math.nan
    with pytest.raises(CheckpointError, match="nan nats"):
        write(policy, tmp_path / "out", base)
    assert not (tmp_path / "out").exists()
