"""A model, tokenizer, adapter or GGUF that comes with code, or asks for it: refused or ignored, never run."""

import contextlib
import json
import pickle
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter

from muster import pretrained
from muster.adapters import add_lora, load_adapter
from muster.errors import ConfigError, ModelError
from tiny import save_tiny_model, tiny_model
from tiny_gguf import write_tiny_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def load_float32(path: str) -> object:
    return pretrained.load_model(path, dtype=torch.float32)


@pytest.mark.parametrize(
    "entry",
    [
        {"text_config": {"auto_map": {"AutoConfig": "code.Mine"}}},
        {"parts": [[{"auto_map": {}}]]},
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": {"": "someone/kernel"}},
        {"text_config": {"experts_implementation": "someone/kernel:file"}},
    ],
)
def test_code_named_anywhere_in_a_config_is_refused(folder, entry):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **entry}))
    with pytest.raises(ModelError, match=r"config\.json .*(auto_map|implementation).*Muster never does"):
        load_float32(str(folder))


def test_an_adapter_beside_a_model_is_refused_since_it_would_load_another(folder):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}')
    with pytest.raises(ModelError, match=r"adapter_config\.json beside its config\.json"):
        load_float32(str(folder))


def test_a_tokenizer_of_a_class_of_its_own_is_no_reason_to_run_its_file(folder, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    for name in ("mine", "tokenization_mine"):
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Mine: pass\n")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "mine.Mine"}))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    try:
        assert pretrained.load_tokenizer(str(folder)).is_fast
    except ModelError as error:
        assert str(folder) in str(error)  # noqa: PT017 - either way the file isn't run
    assert not marker.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickles_beside_safetensors_are_never_opened(folder, name):
    bomb = pickle.dumps(Path)
    (folder / name).write_bytes(bomb)
    opened: list[str] = []
    with watched_opens(opened):
        load_float32(str(folder))
    assert str(folder / "config.json") in opened
    assert str(folder / name) not in opened


@contextlib.contextmanager
def watched_opens(opened: list[str]) -> Generator[None]:
    """Notes the files that are opened; the hook itself stays, and notes nothing afterwards."""
    watching = True

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(note)
    try:
        yield
    finally:
        watching = False


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"megatron_core": "mine", "megatron_config": {"a": 1}}, "sets megatron_config"),
        ({"init_lora_weights": "corda", "corda_config": {"cache_file": "c.pt"}}, "sets corda_config"),
        ({"peft_type": "MULTITASK_PROMPT_TUNING"}, "peft_type 'MULTITASK_PROMPT_TUNING'"),
        ({"peft_type": None}, "peft_type None"),
    ],
)
def test_an_adapter_that_would_load_more_is_refused(tmp_path, monkeypatch, change, says):
    marker = tmp_path / "marker"
    (tmp_path / "mine.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    add_lora(tiny_model(), rank=2, alpha=2, targets=["q_proj"], seed=0).save_pretrained(str(tmp_path / "a"))
    file = tmp_path / "a" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ConfigError, match=says):
        load_adapter(tiny_model(), tmp_path / "a")
    assert not marker.exists()


def test_the_library_that_an_adapter_names_for_itself_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("open('marker', 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    add_lora(tiny_model(), rank=2, alpha=2, targets=["q_proj"], seed=0).save_pretrained(str(tmp_path / "a"))
    file = tmp_path / "a" / "adapter_config.json"
    mapping = {"base_model_class": "Mine", "parent_library": "mine"}
    file.write_text(json.dumps({**json.loads(file.read_text()), "auto_mapping": mapping}))
    load_adapter(tiny_model(), tmp_path / "a")
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, "null"])
def test_an_adapter_config_that_is_none_is_named(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"adapter_config\.json (is not JSON|has peft_type None)"):
        load_adapter(tiny_model(), tmp_path)


def test_code_named_in_the_metadata_of_a_gguf_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text("open('marker', 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    add = GGUFWriter.add_name

    def with_code(writer: GGUFWriter, name: str) -> None:
        add(writer, name)
        writer.add_string("auto_map", '{"AutoConfig": "mine.Mine"}')
        writer.add_string("general.auto_map", "mine.Mine")
        writer.add_string("tokenizer.auto_map", "mine.Mine")

    monkeypatch.setattr(GGUFWriter, "add_name", with_code)
    file = write_tiny_gguf(tmp_path / "m.gguf")
    load_float32(str(file))
    assert pretrained.load_tokenizer(str(file)).is_fast
    assert not (tmp_path / "marker").exists()
