"""What was written is read back by a process of its own; whichever part is wrong, nothing is published."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from muster import pretrained
from muster.adapters import add_lora
from muster.errors import CheckpointError
from muster.export import export_model
from muster.export.process import read_alone, read_fresh
from muster.export.reading import read
from muster.policy import Policy
from tiny import ids_of, save_tiny_model

PROBES = [ids_of("what was trained"), ids_of("is what is read back")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("export") / "base")


def trained_policy(base: Path, *, adapter: bool, by: float = 0.05) -> Policy:
    """The base model, moved a little in every tensor that is trained."""
    model = pretrained.load_model(str(base), dtype=torch.float32)
    if adapter:
        model = add_lora(model, rank=4, alpha=8.0, targets=["q_proj", "v_proj", "down_proj"], seed=1)
    policy = Policy(model, pretrained.load_tokenizer(str(base)), max_tokens=128)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, param in policy.trainable():
            param.add_(by * torch.randn(param.shape, generator=generator))
    return policy


def export(policy: Policy, folder: Path, base: Path, **options):
    return export_model(policy, folder, card="# card", probes=PROBES, base_path=str(base), **options)


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def edit_tensors(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def zero_one(tensors) -> None:
    name = sorted(name for name in tensors if "down_proj" in name)[0]
    tensors[name] = torch.zeros_like(tensors[name])


def untie(tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 0.1


def untied(folder: Path, base: Path) -> None:
    edit_tensors(folder / "model.safetensors", untie)
    edit(folder / "config.json", tie_word_embeddings=False)


def without_template(folder: Path, base: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def other_template(folder: Path, base: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text().replace("assistant", "model"))


def other_eos(folder: Path, base: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[2, 7])


def other_token(folder: Path, base: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"content": "<|im_start|>"', '"content": "<|im_begin|>"'))


def no_weights(folder: Path, base: Path) -> None:
    next(folder.glob("*.safetensors")).unlink()


def the_base_model(folder: Path, base: Path) -> None:
    shutil.copy(base / "model.safetensors", folder / "model.safetensors")


WEIGHTS = {
    "one tensor zeroed": (
        lambda folder, base: edit_tensors(folder / "model.safetensors", zero_one),
        "1 of 20 tensors are of other values (model.layers.0.mlp.down_proj.weight)",
    ),
    "a tied weight untied": (untied, "1 of 20 tensors are too many (lm_head.weight)"),
    "the base instead": (the_base_model, "what was written is the model before training"),
    "no template": (without_template, "the chat template is missing"),
    "another template": (other_template, "the chat template is another one"),
    "another end": (other_eos, "completions end at tokens [2, 7] instead of [2]"),
    "another token": (other_token, "the tokenizer has other tokens"),
    "other positions": (
        lambda folder, base: edit(
            folder / "config.json", rope_parameters={"rope_theta": 99.0, "rope_type": "default"}
        ),
        "nats from the trained policy's (at most 0.001 is rounding)",
    ),
    "nothing": (no_weights, "can't be read back"),
}
ADAPTER = {
    "another scale": (
        lambda folder, base: edit(folder / "adapter_config.json", lora_alpha=16),
        "the adapter is scaled by [4.0] instead of [2.0]",
    ),
    "a scale by the root": (
        lambda folder, base: edit(folder / "adapter_config.json", use_rslora=True),
        "the adapter is scaled by [4.0] instead of [2.0]",
    ),
    "one tensor zeroed": (
        lambda folder, base: edit_tensors(folder / "adapter_model.safetensors", zero_one),
        "of other values (base_model.model.model.layers.0.mlp.down_proj.lora_A.weight)",
    ),
    "no template": (without_template, "the chat template is missing"),
    "another end": (other_eos, "completions end at tokens [2, 7] instead of [2]"),
    "no base": (
        lambda folder, base: edit(folder / "adapter_config.json", base_model_name_or_path=None),
        "doesn't name the model that the adapter is for",
    ),
    "nothing": (no_weights, "can't be read back"),
}
CASES = [
    *((False, *case) for case in WEIGHTS.values()),
    *((True, *case) for case in ADAPTER.values()),
]
NAMES = [*(f"weights: {name}" for name in WEIGHTS), *(f"adapter: {name}" for name in ADAPTER)]


@pytest.mark.parametrize(("adapter", "spoil", "says"), CASES, ids=NAMES)
def test_an_export_with_one_part_wrong_is_refused_and_leaves_nothing(tmp_path, base, adapter, spoil, says):
    def after_spoiling(source, held):
        spoil(source, base)
        return read_fresh(source, held)

    policy = trained_policy(base, adapter=adapter)
    with pytest.raises(CheckpointError) as caught:
        export(policy, tmp_path / "out", base, read_back=after_spoiling)
    assert says in str(caught.value)
    assert "Nothing was published" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_base_model_merged_instead_of_the_adapter_is_refused(tmp_path, base):
    def after_swapping(source, held):
        the_base_model(source, base)
        return read(source, held)

    with pytest.raises(CheckpointError, match="the model before training"):
        export(
            trained_policy(base, adapter=True), tmp_path / "out", base, merge=True, read_back=after_swapping
        )


def test_an_earlier_export_survives_one_that_is_refused(tmp_path, base):
    policy = trained_policy(base, adapter=False)
    export(policy, tmp_path / "out", base, read_back=read)
    before = (tmp_path / "out" / "model.safetensors").read_bytes()

    def after_spoiling(source, held):
        other_eos(source, base)
        return read(source, held)

    with pytest.raises(CheckpointError):
        export(trained_policy(base, adapter=False, by=0.1), tmp_path / "out", base, read_back=after_spoiling)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("adapter", [False, True])
def test_the_figures_say_how_far_training_went(tmp_path, base, adapter):
    proof = export(trained_policy(base, adapter=adapter), tmp_path / "out", base)
    assert proof.difference < 1e-5
    assert proof.moved is not None
    assert proof.moved > 0.01
    assert not proof.is_untrained
    assert "from the base model's" in str(proof)


@pytest.mark.parametrize("adapter", [False, True])
def test_weights_that_were_not_trained_are_said_to_be(tmp_path, base, adapter):
    proof = export(trained_policy(base, adapter=adapter, by=0.0), tmp_path / "out", base, read_back=read)
    assert proof.is_untrained
    assert proof.moved is not None
    assert proof.moved < 1e-5  # rounding: attention is computed in another way
    assert "nothing was learned" in str(proof)


def test_full_weights_are_exported_also_where_their_base_is_gone(tmp_path, base):
    policy = trained_policy(base, adapter=False)
    proof = export(policy, tmp_path / "out", tmp_path / "gone", read_back=read)
    assert proof.moved is None
    assert "base" not in str(proof)


def test_a_process_of_its_own_reads_what_was_written(tmp_path, base, monkeypatch):
    """Started anew, in a folder whose files would stand in for libraries, and with no trace left behind."""
    (tmp_path / "torch.py").write_text("raise SystemExit('this is not torch')")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    policy = trained_policy(base, adapter=True)
    assert export(policy, tmp_path / "out", base, read_back=read_alone).difference < 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "torch.py"]


def test_a_shared_process_answers_again_after_it_was_asked_in_vain(tmp_path, base):
    """All tests are inside `shared_reader`, so this is the process that the others use."""
    policy = trained_policy(base, adapter=False)
    with pytest.raises(CheckpointError, match="can't be read back"):
        export(
            policy,
            tmp_path / "out",
            base,
            read_back=lambda source, held: read_fresh(source / "no such folder", held),
        )
    assert export(policy, tmp_path / "out", base).difference < 1e-5
