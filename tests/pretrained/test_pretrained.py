"""What `model.path` may be, and what is refused before any of it is run or unpickled."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.utils import logging

from muster import pretrained
from muster.embedded import FILE, INSTALL, NAME, find_embedded
from muster.errors import ConfigError, ModelError
from muster.quiet import quiet
from tiny import END, save_tiny_model, tiny_model, tiny_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def load_float32(path: str) -> PreTrainedModel:
    return pretrained.load_model(path, dtype=torch.float32)


def test_a_folder_loads_as_the_model_it_was_saved_from(folder):
    model = load_float32(str(folder))
    ids = torch.tensor([[5, 9, 40, 77]])
    assert torch.equal(model(input_ids=ids).logits, tiny_model()(input_ids=ids).logits)
    assert not model.training


def test_the_precision_is_the_one_asked_for(folder):
    assert pretrained.load_model(str(folder), dtype=torch.bfloat16).dtype == torch.bfloat16


def test_a_tokenizer_keeps_its_template_and_ids(folder):
    tokenizer = pretrained.load_tokenizer(str(folder))
    assert tokenizer.is_fast
    assert tokenizer.chat_template == tiny_tokenizer().chat_template
    assert tokenizer("a 12")["input_ids"] == tiny_tokenizer()("a 12")["input_ids"]


def test_tied_embeddings_are_one_tensor_after_loading_and_after_a_step(folder):
    model = load_float32(str(folder))
    head, embedding = (model.get_parameter(name) for name in ("lm_head.weight", "model.embed_tokens.weight"))
    assert head is embedding
    before = embedding.detach().clone()
    model(input_ids=torch.tensor([[5, 9]])).logits.sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(embedding, before)
    assert model.get_parameter("lm_head.weight") is model.get_parameter("model.embed_tokens.weight")


def test_training_never_writes_into_the_files_that_were_loaded(folder):
    before = (folder / "model.safetensors").read_bytes()
    model = load_float32(str(folder))
    with torch.no_grad():
        for param in model.parameters():
            param.add_(1.0)
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("generation_ends", "stops"), [([9, 2], {2, 9}), (9, {2, 9}), (None, {2}), ([0, 2], {0, 2})]
)
def test_stops_are_those_of_the_tokenizer_and_of_the_generation_config(generation_ends, stops):
    model = tiny_model()
    model.generation_config.eos_token_id = generation_ends
    assert tiny_tokenizer().eos_token == END
    assert pretrained.stop_ids(model, tiny_tokenizer()) == stops


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("load", [pretrained.load_tokenizer, load_float32])
def test_code_that_comes_with_a_model_is_refused_and_never_run(folder, tmp_path, name, load):
    marker = tmp_path / "marker"
    (folder / "code.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Mine: pass\n")
    settings = json.loads((folder / name).read_text())
    if name == "config.json":
        settings["auto_map"] = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "code.Mine")
    else:
        settings["auto_map"] = {"AutoTokenizer": ["code.Mine", "code.Mine"]}
    (folder / name).write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=rf"{name} .*'auto_map'.*Muster never does"):
        load(str(folder))
    assert not marker.exists()


def test_weights_in_a_pickle_are_refused_unopened(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(ModelError, match=r"has neither model\.safetensors .*Only safetensors are read"):
        load_float32(str(folder))


def test_weights_that_are_missing_are_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 tensors of LlamaForCausalLM, such as model\.norm\.weight"):
        load_float32(str(folder))


def test_weights_of_another_shape_are_named_with_both_shapes(folder):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "intermediate_size": 64}))
    with pytest.raises(ModelError, match=r"have 6 tensors .*down_proj\.weight: \[32, 48\] where \[32, 64\]"):
        load_float32(str(folder))


def test_weights_without_a_place_are_counted_aloud(folder):
    weights = load_file(folder / "model.safetensors")
    save_file(
        {**weights, "vision.weight": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    said = []
    pretrained.load_model(str(folder), dtype=torch.float32, say=said.append)
    assert said == ["left out 1 tensors that LlamaForCausalLM has no use for, such as vision.weight"]


def test_a_torn_file_of_weights_is_named(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"the model of model.path .*model' can't be loaded from .*model: "):
        load_float32(str(folder))


def test_a_folder_without_a_tokenizer_is_named(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"the tokenizer of model.path"):
        pretrained.load_tokenizer(str(folder))


@pytest.mark.parametrize("file", ["adapter_config.json", "tiny.gguf", "notes.txt"])
def test_a_folder_that_is_no_model_is_refused_by_what_it_holds(tmp_path, file):
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / file).write_text("{}")
    meant = {
        "adapter_config.json": "model.adapter",
        "tiny.gguf": "Name one",
        "notes.txt": "without config.json",
    }
    with pytest.raises(ConfigError, match=meant[file]):
        pretrained.resolve(str(tmp_path / "thing"))


def test_a_path_that_is_nothing_gets_the_nearest_name(folder, tmp_path):
    with pytest.raises(ConfigError, match=rf"Did you mean '{tmp_path}/model'.*'{NAME}'"):
        pretrained.resolve(str(tmp_path / "modle"))


@pytest.mark.parametrize(
    "path", ["", ".hidden/x", "../x/y", "a/b/c", "x\0y", "a b", "x.gguf", "n" * 5000 + "/a/b", "-x"]
)
def test_an_odd_name_is_neither_a_path_nor_a_hub_id(path):
    with pytest.raises(ConfigError, match=r"neither a folder nor a .gguf file"):
        pretrained.resolve(path)


def test_a_file_that_is_no_gguf_is_refused(folder):
    with pytest.raises(ConfigError, match="is a file"):
        pretrained.resolve(str(folder / "config.json"))


@pytest.mark.parametrize("path", ["gpt2", "some-owner/some.model_1"])
def test_a_hub_id_stays_one(path):
    assert pretrained.resolve(path) == path


def test_a_hub_id_that_cannot_be_had_offline_comes_with_remedies(folder):
    with pytest.raises(
        ModelError, match=r"there is no such folder, and the hub gave: .*HF_HUB_OFFLINE.*embedded"
    ) as caught:
        pretrained.load_tokenizer("some-owner/some-model")
    assert "Did you mean" not in str(caught.value)
    with pytest.raises(ConfigError, match=rf"Did you mean '{NAME}'\?"):
        load_float32("smollm2-135m-instruckt")


def test_where_the_embedded_package_is_missing_one_command_is_named(tmp_path):
    with pytest.raises(ModelError) as caught:
        find_embedded(lambda: [str(tmp_path)])
    assert str(caught.value).endswith(f"Run: {INSTALL}")
    (tmp_path / FILE).touch()
    assert find_embedded(lambda: [str(tmp_path)]) == tmp_path / FILE


def test_loading_and_saving_print_nothing_and_change_no_setting(folder, tmp_path, capfd):
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    model = load_float32(str(folder))
    with quiet():
        model.save_pretrained(tmp_path / "again")
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_a_home_folder_is_expanded(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert pretrained.resolve("~/model") == str(folder)
    shutil.rmtree(folder)
    with pytest.raises(ConfigError):
        pretrained.resolve("~/model")
