"""A chat template is a program that came with a model: what it may not do, and what is said when it tries."""

import os
import select
import signal
import time

import pytest
from transformers import AutoTokenizer

from muster.data import encode_prompts
from muster.data.templates import MAX_CHARS, rendered
from muster.errors import DataError
from muster.records import Sample
from process_state import descendants
from tiny import TEMPLATE, tiny_tokenizer

LOOPS = {
    "one long range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself": "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "a big power": "{{ 9 ** (9 ** 9) }}",
    "a slow filter": "{{ range(99999) | map('string') | join | list | sort | batch(2) | list | tojson }}"
    "{% for i in range(9999) %}{{ range(99999) | sum }}{% endfor %}",
}
MEMORY = {
    "a long text": "{{ 'x' * 10 ** 10 }}",
    "a text that doubles": "{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(60) %}"
    "{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
    "padding": "{{ 'x'.ljust(10 ** 10) }}",
    "centred": "{{ 'x' | center(10 ** 10) }}",
    "a format": "{{ '%10000000000d' % 1 }}",
    "a list": "{{ [1] * 10 ** 10 }}",
    "a long output": "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "a text within memory": "{{ 'x' * " + str(MAX_CHARS + 1) + " }}",
}
WALKS = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals of a function": "{{ cycler.__init__.__globals__.os.system('touch marker') }}",
    "a format that walks": "{{ '{0.__class__.__mro__}'.format('') }}",
    "the code of a macro": "{% macro m() %}{% endmacro %}{{ m.__class__ }}{{ m._func.__code__ }}",
    "an item": "{{ messages['__class__']['__mro__'] }}",
    "the loader": "{{ self.__init__.__globals__ }}",
    "a changed message": "{{ messages.append(1) }}",
    "an included file": "{% include '/etc/passwd' %}",
    "an imported file": "{% import '/etc/passwd' as p %}",
    "a parent": "{% extends '/etc/passwd' %}",
    "no template at all": "{% for %}",
    "deep brackets": "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
}
NOTHING = {
    "globals of a global": "{{ raise_exception.__globals__ }}",
    "a class by filter": "{{ ''|attr('__class__') }}",
    "a format by filter": "{{ '{0.__class__}'|attr('format')('') }}",
}
"""What jinja gives for these is empty."""
CHAT = [{"role": "user", "content": "hi"}]
SAMPLE = Sample(id="41", messages=tuple(CHAT))


def refusal(template: str) -> str:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    started, before = time.process_time(), descendants(os.getpid())
    with pytest.raises(DataError) as caught:
        encode_prompts([SAMPLE], tokenizer, max_prompt_tokens=10**9)
    assert time.process_time() - started < 1, "the time is the child's, not ours"
    assert descendants(os.getpid()) == before
    return str(caught.value)


def test_the_child_does_not_outlive_a_parent_that_was_killed():
    """It renders more than a pipe holds, to a reader that is gone."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)

        def render(number: int) -> str:
            if number == 1:
                os.write(writing, f"{os.getpid()}\n".encode())
            return "x" * 100_000

        try:
            for _ in rendered(render, ["0"] * 100, "m"):
                pass
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    child = int(os.read(reading, 100))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    # The other end of this pipe is the child's alone: it closes when the child is gone.
    assert select.select([reading], [], [], 10)[0], f"process {child} is still there"
    assert os.read(reading, 1) == b""
    os.close(reading)


@pytest.mark.parametrize("template", LOOPS.values(), ids=LOOPS)
def test_a_template_that_goes_on_for_ever_is_ended(template):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template

    def render(_: int) -> str:
        return str(tokenizer.apply_chat_template(CHAT, tokenize=False))

    with pytest.raises(DataError) as caught:
        rendered(render, ["41"], "m", limit_s=0.3)
    said = str(caught.value)
    assert said.startswith("Sample 41: the chat template of m ")
    assert "0.3 s of processor time" in said or "Error" in said or "MiB of memory" in said


def test_the_limit_of_time_is_named():
    assert "takes more than 3 s of processor time for one conversation" in refusal(LOOPS["nested loops"])


@pytest.mark.parametrize("template", MEMORY.values(), ids=MEMORY)
def test_a_template_that_fills_the_memory_ends_with_its_limit(template):
    said = refusal(template)
    assert "Sample 41: the chat template of " in said
    assert "512 MiB of memory" in said or "16 Mi characters" in said or "s of processor time" in said


@pytest.mark.parametrize("template", WALKS.values(), ids=WALKS)
def test_a_template_that_walks_out_of_its_sandbox_is_refused(template, tmp_path):
    said = refusal(template)
    assert "Sample 41: the chat template of " in said
    assert "Error" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("template", NOTHING.values(), ids=NOTHING)
def test_what_a_template_may_not_read_is_empty(template):
    assert refusal(template) == "The prompts of samples 41 have no tokens."


def test_the_message_names_the_model_whose_template_it_is(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('only one role, please') }}"
    tokenizer.save_pretrained(tmp_path / "mine")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "mine")
    with pytest.raises(DataError, match=r"mine failed: TemplateError: only one role, please\. Mend"):
        encode_prompts([SAMPLE], loaded, max_prompt_tokens=99)


def test_texts_are_those_that_transformers_renders_itself():
    tokenizer = tiny_tokenizer()
    hostile = ["hi", "{{ 1 }}", "\x1b[2J\x00", "größe 连续 \U0001f600", "a\nb\\n\"'", "<|im_end|>" * 3]
    chats = [[{"role": "user", "content": text}] for text in hostile * 40]
    samples = [Sample(id=str(number), messages=tuple(chat)) for number, chat in enumerate(chats)]
    prompts = encode_prompts(samples, tokenizer, max_prompt_tokens=10**6).prompts
    expected = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats
    ]
    assert [prompt.text for prompt in prompts] == expected
    assert tokenizer.chat_template == TEMPLATE


def test_what_a_template_changes_stays_in_its_process():
    seen: list[int] = []

    def render(number: int) -> str:
        seen.append(number)
        os.environ["LEFT_BEHIND"] = "yes"
        return str(number)

    assert rendered(render, ["a", "b"], "m") == ["0", "1"]
    assert seen == []
    assert "LEFT_BEHIND" not in os.environ


def test_a_process_that_dies_of_a_template_is_said_to_have():
    with pytest.raises(DataError, match="Sample b: the chat template of m ended its process with SIGKILL"):
        rendered(lambda number: os.kill(os.getpid(), 9) or "" if number else "fine", ["a", "b"], "m")
