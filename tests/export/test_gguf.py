"""GGUF files: loaded back they are the policy, to the last bit of the precision they are written in."""

import json
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from muster import pretrained
from muster.adapters import add_lora
from muster.converted import named_ends, read_gguf
from muster.errors import CheckpointError, ConfigError
from muster.export import Gguf, export_model
from muster.export.gguf import DType, pairs_from_halves
from muster.export.held import TEXTS
from muster.export.reading import read
from muster.policy import Policy
from tiny import END, SPECIAL, START, TEMPLATE, tiny_model

PROBES = [tuple(range(5, 40)), tuple(range(60, 90))]
WORDS = ["the answer is four", "what is 2 + 2", "two  blanks and the rest", "naïve café 日本"] * 5


def splits(kind: str):
    if kind == "smollm":
        return [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    if kind == "gpt-2":
        return [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    regex = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[kind]), behavior="isolated")
    return [regex, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def byte_level_tokenizer(kind: str = "smollm") -> PreTrainedTokenizerFast:
    """A small tokenizer with merges, split as `kind` says, with a token that is added but not special."""
    tokenizer = Tokenizer(BPE())
    parts = splits(kind)
    tokenizer.pre_tokenizer = parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=START, eos_token=END, pad_token=END
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def save_model(folder: Path, family: str = "llama", kind: str = "smollm", **overrides) -> Path:
    tokenizer = byte_level_tokenizer(kind)
    # More ids than tokens: real models are padded so.
    tiny_model(family, **{"vocab_size": len(tokenizer) + 5, **overrides}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def policy_of(base: Path, *, adapter: bool = False) -> Policy:
    model = pretrained.load_model(str(base), dtype=torch.float32)
    if adapter:
        model = add_lora(model, rank=4, alpha=8.0, targets=["q_proj", "k_proj", "down_proj"], seed=1)
    policy = Policy(model, pretrained.load_tokenizer(str(base)), max_tokens=128)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, param in policy.trainable():
            param.add_(0.05 * torch.randn(param.shape, generator=generator))
    return policy


def export(policy: Policy, path: Path, base: Path, dtype: DType = "f32", **options):
    options = {name: value for name, value in {"read_back": read, **options}.items() if value}
    return export_model(
        policy, path, card="", probes=PROBES, base_path=str(base), gguf=Gguf(dtype), **options
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_file_is_read_back_as_the_policy(tmp_path, dtype, tied):
    base = save_model(tmp_path / "base", tie_word_embeddings=tied)
    policy = policy_of(base)
    proof = export(policy, tmp_path / "out.gguf", base, dtype)
    assert proof.difference <= {"f32": 1e-5, "f16": 0.02, "bf16": 0.2}[dtype]
    reader = GGUFReader(tmp_path / "out.gguf")
    assert ("output.weight" in {tensor.name for tensor in reader.tensors}) == (not tied)
    kinds = {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1}
    assert kinds == {dtype.upper()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "out.gguf"]


def test_transformers_alone_reads_the_file_as_the_policy(tmp_path):
    """By its own `gguf_file`, without anything of ours, on a process of its own before that."""
    base = save_model(tmp_path / "base")
    policy = policy_of(base, adapter=True)
    proof = export(policy, tmp_path / "out.gguf", base, read_back=None)
    assert proof.moved is not None
    assert proof.moved > 0.01
    (tmp_path / "alone").mkdir()
    (tmp_path / "out.gguf").rename(tmp_path / "alone" / "out.gguf")
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "alone", gguf_file="out.gguf", dtype=torch.float32
    )
    ids = torch.tensor([PROBES[0]])
    with torch.no_grad():
        ours, theirs = (model(input_ids=ids).logits.log_softmax(-1) for model in (policy.model, again))
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "alone", gguf_file="out.gguf")
    assert tokenizer.chat_template == TEMPLATE


@pytest.mark.parametrize("kind", ["smollm", "gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_the_tokenizer_of_the_file_cuts_every_text_as_ours(tmp_path, kind):
    base = save_model(tmp_path / "base", kind=kind)
    export(policy_of(base), tmp_path / "out.gguf", base)
    reader = GGUFReader(tmp_path / "out.gguf")
    field = reader.get_field("tokenizer.ggml.pre")
    assert field is not None
    assert field.contents() == kind
    _, tokenizer = read_gguf(tmp_path / "out.gguf")
    ours = byte_level_tokenizer(kind)
    corpus = [
        *TEXTS,
        *WORDS,
        "<think>2 + 2</think><|im_start|>user\n\n1 22 333 4444<|im_end|>",
        "\n\n1",
        "  1 ",
    ]
    assert [tokenizer(text)["input_ids"] for text in corpus] == [ours(text)["input_ids"] for text in corpus]


def test_the_kinds_of_tokens_are_those_of_the_tokenizer(tmp_path):
    base = save_model(tmp_path / "base")
    export(policy_of(base), tmp_path / "out.gguf", base)
    reader = GGUFReader(tmp_path / "out.gguf")
    tokens, kinds = (
        field.contents()
        for name in ("tokens", "token_type")
        if (field := reader.get_field(f"tokenizer.ggml.{name}")) is not None
    )
    by_token = dict(zip(tokens, kinds, strict=True))
    assert {by_token[token] for token in SPECIAL} == {TokenType.CONTROL}
    assert by_token["<think>"] == TokenType.USER_DEFINED
    assert by_token["a"] == TokenType.NORMAL
    assert by_token[tokens[-1]] == TokenType.UNUSED


def test_every_stop_of_the_model_is_named_in_the_file(tmp_path):
    base = save_model(tmp_path / "base")
    path = base / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [2, 0]}))
    policy = policy_of(base)
    export(policy, tmp_path / "out.gguf", base)
    assert named_ends(tmp_path / "out.gguf") == (0, 2)
    model, tokenizer = read_gguf(tmp_path / "out.gguf")
    assert pretrained.stop_ids(model, tokenizer) == pretrained.stop_ids(policy.base, policy.tokenizer)


def test_positions_that_are_scaled_evenly_stay_so(tmp_path):
    scaled = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    base = save_model(tmp_path / "base", rope_parameters=scaled)
    assert export(policy_of(base), tmp_path / "out.gguf", base).difference < 1e-5
    model, _ = read_gguf(tmp_path / "out.gguf")
    assert model.config.rope_parameters == scaled


def test_mistral_without_a_window_is_written_as_llama(tmp_path):
    base = save_model(tmp_path / "base", "mistral")
    assert export(policy_of(base), tmp_path / "out.gguf", base).difference < 1e-5


def test_a_written_file_is_a_model_to_start_from(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    base = save_model(tmp_path / "base")
    policy = policy_of(base)
    export(policy, tmp_path / "out.gguf", base)
    again = pretrained.load_model(str(tmp_path / "out.gguf"), dtype=torch.float32)
    for name, param in policy.base.named_parameters():
        assert torch.equal(param, again.get_parameter(name)), name


def test_rows_change_their_places_by_hand():
    """Two heads of four rows: halves (0 1 | 2 3) become pairs (0 2 | 1 3)."""
    rows = torch.arange(8.0)[:, None]
    assert pairs_from_halves(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


UNFIT = {
    "another family": ({"family": "gpt2"}, "written are llama, mistral"),
    "biases": ({"attention_bias": True}, "8 tensors that are no part of a plain Llama"),
    "a window": ({"family": "mistral", "sliding_window": 16}, "a window of 16"),
    "other scaling": (
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
            }
        },
        "its positions are scaled by 'llama3'",
    ),
}


@pytest.mark.parametrize(("overrides", "says"), UNFIT.values(), ids=UNFIT)
def test_what_a_file_can_not_hold_exactly_is_refused(tmp_path, overrides, says):
    base = save_model(tmp_path / "base", **overrides)
    with pytest.raises(ConfigError) as caught:
        export(policy_of(base), tmp_path / "out.gguf", base)
    assert says in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_way_of_splitting_without_a_name_is_refused(tmp_path):
    base = save_model(tmp_path / "base")
    tokenizer = byte_level_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel()]
    )
    policy = policy_of(base)
    policy.tokenizer = tokenizer
    with pytest.raises(ConfigError, match="has no name for"):
        export(policy, tmp_path / "out.gguf", base)


def test_a_file_with_rows_in_the_wrong_places_is_refused(tmp_path):
    """As a writer that knows nothing of Llama's rotation would leave them."""

    def after_swapping(source, held):
        tensor = next(t for t in GGUFReader(source, "r+").tensors if t.name == "blk.0.attn_q.weight")
        tensor.data[:] = tensor.data.reshape(4, -1, 2, 32).swapaxes(1, 2).reshape(tensor.data.shape)
        return read(source, held)

    base = save_model(tmp_path / "base")
    with pytest.raises(CheckpointError, match=r"of other values \(model.layers.0.self_attn.q_proj.weight\)"):
        export(policy_of(base), tmp_path / "out.gguf", base, read_back=after_swapping)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]
