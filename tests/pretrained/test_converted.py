"""A GGUF becomes a folder once; many may convert, none sees half of it."""

import os
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from muster import pretrained
from muster.converted import STALE_S, cache_folder, converted
from muster.embedded import NAME
from muster.errors import ModelError
from muster.files import Operation, watched
from tiny import TEMPLATE, tiny_model
from tiny_gguf import write_tiny_gguf


def silent(_: str) -> None:
    pass


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    return write_tiny_gguf(tmp_path / "tiny.gguf")


def test_the_converted_model_computes_what_the_original_does(gguf):
    model = pretrained.load_model(str(gguf), dtype=torch.float32)
    ids = torch.tensor([[5, 9, 40, 77, 12]])
    expected = tiny_model()(input_ids=ids).logits
    torch.testing.assert_close(model(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-5)


def test_tied_embeddings_are_stored_once_and_loaded_as_one(gguf):
    folder = pretrained.resolve(str(gguf))
    with safe_open(Path(folder) / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
    model = pretrained.load_model(str(gguf), dtype=torch.float32)
    assert model.get_parameter("lm_head.weight") is model.get_parameter("model.embed_tokens.weight")


def test_the_converted_tokenizer_stops_pads_and_splits_as_the_model_was_trained(gguf):
    tokenizer = pretrained.load_tokenizer(str(gguf))
    model = pretrained.load_model(str(gguf), dtype=torch.float32)
    # <|endoftext|> and <|im_end|>; the file itself names only the second.
    assert pretrained.stop_ids(model, tokenizer) == {0, 2}
    assert tokenizer.pad_token_id == 2
    assert tokenizer.chat_template == TEMPLATE
    # Digits are cut off first, so that two blanks before one stay one token.
    assert tokenizer("  7")["input_ids"] == [258, *tokenizer("7")["input_ids"]]


def test_a_second_load_converts_nothing_and_says_nothing(gguf):
    said: list[str] = []
    first = converted(gguf, said.append)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert said == ["converting tiny.gguf once, about half a minute for a small model"]
    assert converted(gguf, said.append) == first
    assert len(said) == 1
    assert (first / "model.safetensors").stat().st_mtime_ns == written


def test_other_content_under_the_same_name_is_another_folder(gguf):
    first = converted(gguf, silent)
    gguf.write_bytes(gguf.read_bytes()[:-4] + b"\0\0\0\0")
    os.utime(gguf, ns=(1, 1))
    assert converted(gguf, silent) != first


def test_the_name_of_a_file_cannot_lead_out_of_the_cache(gguf, tmp_path):
    odd = gguf.rename(tmp_path / "..;rm \u202e.gguf")
    folder = converted(odd, silent)
    assert folder.parent == tmp_path / "cache"
    assert folder.name.isascii()
    assert " " not in folder.name


def test_files_beside_the_gguf_are_not_taken_for_parts_of_it(gguf, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["x.Y", "x.Y"]}}')
    (tmp_path / "chat_template.jinja").write_text("not this one")
    assert pretrained.load_tokenizer(str(gguf)).chat_template == TEMPLATE


def test_two_conversions_at_once_both_end_well(gguf, tmp_path):
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(converted(gguf, silent))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert results[0] == results[1]
    assert os.listdir(tmp_path / "cache") == [results[0].name]


def test_a_process_that_was_faster_to_the_name_keeps_it(gguf, tmp_path):
    theirs = converted(gguf, silent).rename(tmp_path / "theirs")

    def publish_first(operation: Operation) -> None:
        if operation.kind == "replace":
            theirs.rename(operation.path)
            (operation.path / "mark").touch()

    with watched(publish_first):
        folder = converted(gguf, silent)
    assert (folder / "mark").exists()
    assert os.listdir(tmp_path / "cache") == [folder.name]


def test_what_a_killed_conversion_left_is_cleared_away_and_a_running_one_is_not(gguf, tmp_path):
    final = converted(gguf, silent)
    final.rename(tmp_path / "away")
    old, fresh = (final.with_name(f".{final.name}.{name}") for name in ("old", "fresh"))
    for left in (old, fresh):
        left.mkdir()
        (left / "half").touch()
    long_ago = time.time() - STALE_S - 60
    os.utime(old, (long_ago, long_ago))
    converted(gguf, silent)
    assert not old.exists()
    assert fresh.exists()


def test_a_file_that_is_no_gguf_inside_is_named_and_leaves_nothing(gguf, tmp_path):
    gguf.write_bytes(b"GGUF but not really")
    with pytest.raises(
        ModelError, match=r"tiny\.gguf can't be read as a model.*Check that the file is whole"
    ) as caught:
        converted(gguf, silent)
    assert str(tmp_path / "cache") not in str(caught.value)
    assert os.listdir(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_written_is_named_with_its_variable(gguf, tmp_path, monkeypatch):
    # Below a file nothing can be made, whoever runs the test.
    (tmp_path / "file").touch()
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"can't be written to .*MUSTER_CACHE"):
        converted(gguf, silent)


def test_the_cache_is_where_the_user_says_or_where_the_platform_keeps_caches(monkeypatch):
    monkeypatch.setenv("MUSTER_CACHE", "/named")
    assert cache_folder() == Path("/named")
    monkeypatch.delenv("MUSTER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/muster")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() in (
        Path("/home/someone/.cache/muster"),
        Path("/home/someone/Library/Caches/muster"),
    )


@pytest.mark.slow
def test_the_embedded_model_answers_and_its_prompt_is_the_one_it_was_trained_on():
    tokenizer = pretrained.load_tokenizer(NAME)
    model = pretrained.load_model(NAME, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    assert isinstance(prompt, str)
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert isinstance(ids, list)
    answer: list[int] = []
    while len(answer) < 20 and not set(answer) & {0, 2}:
        logits = model(input_ids=torch.tensor([ids + answer])).logits
        answer.append(int(logits[0, -1].argmax()))
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
    assert pretrained.stop_ids(model, tokenizer) == {0, 2}
    assert tokenizer("\n\n1")["input_ids"] == [1116, 33]
