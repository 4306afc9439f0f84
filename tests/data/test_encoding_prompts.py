from typing import Any

import pytest

from muster.data import encode_prompts
from muster.errors import ConfigError, DataError
from muster.records import Sample


class ToyTokenizer:
    """One id per character, specials whole; prepends its bos where special tokens are asked for."""

    def __init__(
        self, *, template: str | None = "<bos>{text}", bos: str | None = "<bos>", eos: str | None = "<eos>"
    ):
        self.chat_template = template
        self.bos_token, self.eos_token = bos, eos
        self.specials = ["<|endoftext|>", "<bos>", "<eos>"]
        self.has_end_of_text = False

    def get_vocab(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.specials) if index or self.has_end_of_text}

    def __call__(self, text: list[str], *, add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [self._ids(one, add_special_tokens) for one in text]}

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = [1] if add_special_tokens else []
        while text:
            special = next((name for name in self.specials if text.startswith(name)), None)
            ids.append(self.specials.index(special) if special else ord(text[0]))
            text = text[len(special or " ") :]
        return ids

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        assert options.pop("tokenize") is False
        assert options.pop("add_generation_prompt") is True
        if "boom" in options:
            raise ValueError("no such role")
        text = "".join(message["content"] for message in conversation)
        assert self.chat_template is not None
        return self.chat_template.format(text=text) + "".join(f"[{k}={v}]" for k, v in options.items())


def chat(text: str, number: int = 0) -> Sample:
    return Sample(id=str(number), messages=({"role": "user", "content": text},))


def raw(text: str) -> Sample:
    return Sample(id="0", text=text)


@pytest.mark.parametrize("sample", [chat("hi"), raw("hi"), raw("<bos>hi")])
@pytest.mark.parametrize("template", ["<bos>{text}", "<bos><bos>{text}"])
def test_a_prompt_starts_with_exactly_one_start_token(sample, template):
    [prompt] = encode_prompts([sample], ToyTokenizer(template=template), max_prompt_tokens=9).prompts
    assert prompt.ids == (1, ord("h"), ord("i"))
    assert prompt.text == "<bos>hi"


@pytest.mark.parametrize(
    ("bos", "eos", "has_end_of_text", "start"),
    [
        ("<bos>", "<eos>", True, (0,)),
        ("<bos>", "<eos>", False, (1,)),
        (None, "<eos>", False, (2,)),
        (None, None, False, ()),
    ],
)
def test_a_raw_prompt_starts_with_end_of_text_else_bos_else_eos(bos, eos, has_end_of_text, start):
    tokenizer = ToyTokenizer(bos=bos, eos=eos)
    tokenizer.has_end_of_text = has_end_of_text
    [prompt] = encode_prompts([raw("x")], tokenizer, max_prompt_tokens=9).prompts
    assert prompt.ids == (*start, ord("x"))


@pytest.mark.parametrize(("make", "times"), [(raw, 1), (chat, 0)])
def test_a_large_vocabulary_is_not_asked_for_with_every_prompt(make, times):
    class Counting(ToyTokenizer):
        asked = 0

        def get_vocab(self) -> dict[str, int]:
            self.asked += 1
            return super().get_vocab()

    tokenizer = Counting()
    encode_prompts([make("a") for _ in range(50)], tokenizer, max_prompt_tokens=9)
    assert tokenizer.asked == times


def test_template_options_pass_through():
    [prompt] = encode_prompts(
        [chat("q")], ToyTokenizer(), max_prompt_tokens=99, chat_template_kwargs={"enable_thinking": False}
    ).prompts
    assert prompt.text == "<bos>q[enable_thinking=False]"
    with pytest.raises(ConfigError, match="sets tokenize"):
        encode_prompts(
            [chat("q")], ToyTokenizer(), max_prompt_tokens=9, chat_template_kwargs={"tokenize": True}
        )


def test_the_limit_counts_tokens_not_characters():
    text = "<eos>" * 180
    assert len(text) == 900
    [prompt] = encode_prompts([chat(text)], ToyTokenizer(), max_prompt_tokens=181).prompts
    assert len(prompt.ids) == 181


def test_longer_prompts_are_refused_with_their_count_or_dropped_with_it():
    samples = [chat("ok", 0), chat("much too long", 1), chat("also too long", 2)]
    with pytest.raises(
        DataError, match=r"2 of 3 prompts are longer than 5 tokens: sample 1 \(14\), sample 2"
    ):
        encode_prompts(samples, ToyTokenizer(), max_prompt_tokens=5)
    encoded = encode_prompts(samples, ToyTokenizer(), max_prompt_tokens=5, overlong="drop")
    assert [prompt.sample.id for prompt in encoded.prompts] == ["0"]
    assert [sample.id for sample in encoded.dropped] == ["1", "2"]
    with pytest.raises(DataError, match="2 of 2 prompts"):
        encode_prompts(samples[1:], ToyTokenizer(), max_prompt_tokens=5, overlong="drop")


def test_a_missing_chat_template_says_what_to_set():
    tokenizer = ToyTokenizer(template=None)
    with pytest.raises(ConfigError, match=r"data\.raw = true"):
        encode_prompts([chat("q")], tokenizer, max_prompt_tokens=9)
    assert encode_prompts([raw("q")], tokenizer, max_prompt_tokens=9).prompts[0].ids == (1, ord("q"))


def test_a_template_that_fails_names_the_sample():
    with pytest.raises(
        DataError, match="Sample 7: the chat template of the tokenizer failed: ValueError: no such role"
    ):
        encode_prompts([chat("q", 7)], ToyTokenizer(), max_prompt_tokens=9, chat_template_kwargs={"boom": 1})


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(DataError, match="samples 0 have no tokens"):
        encode_prompts([chat("")], ToyTokenizer(template="{text}"), max_prompt_tokens=9)
