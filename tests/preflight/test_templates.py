"""Whether a template's end of turn is one for the sampler."""

import pytest

from muster.preflight import TurnEnd
from muster.preflight.template import turn_end
from muster.records import Sample
from tiny import tiny_tokenizer

ASKED = Sample(id="0", messages=({"role": "user", "content": "Hello"},))


def ends(template=None, *, sample=ASKED, stop_ids=(2,), stop_strings=()):
    tokenizer = tiny_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    return turn_end(sample, tokenizer, stop_ids=stop_ids, stop_strings=stop_strings, chat_template_kwargs={})


def test_a_turn_that_ends_with_a_stop_token_stops():
    assert ends() == TurnEnd("<|im_end|>", stops=True)


def test_a_turn_that_ends_with_another_token_goes_on():  # B32
    assert ends(stop_ids=(0,)) == TurnEnd("<|im_end|>", stops=False)
    assert ends(stop_ids=(0,), stop_strings=("<|im_end|>",)) == TurnEnd("<|im_end|>", stops=True)


@pytest.mark.parametrize(
    ("end", "token"), [("", None), ("\n", "\n"), (" </s>", "<"), ("<|endoftext|>", "<|endoftext|>")]
)
def test_what_follows_an_answer_is_named(end, token):
    template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}" + end + "{% endfor %}"
    assert ends(template) == TurnEnd(token, stops=False)


def test_nothing_is_said_of_raw_prompts_and_of_templates_without_answers():
    assert ends(sample=Sample(id="0", text="Once")) is None
    assert ends("{{ messages[0]['content'] }}") is None
    assert ends("{{ raise_exception('no assistant') }}") is None
