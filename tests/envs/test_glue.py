"""What stands between turns, from the chat template, held against renderings of whole conversations."""

import pytest

from muster.envs import Glue
from muster.errors import ConfigError
from tiny import TEMPLATE, ids_of, tiny_tokenizer

OPENING = ({"role": "user", "content": "What is it?"},)

DROPS_THINKING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and not loop.last %}"
    "{{ message['content'].split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ message['content'] }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen3's does: of an answer that is not the last, what was thought is left out."""
MARKS_LAST = TEMPLATE.replace(
    "{{ message['content'] }}", "{% if loop.last %}*{% endif %}{{ message['content'] }}"
)
ONLY_USERS = TEMPLATE.replace(
    "{% for message in messages %}",
    "{% for message in messages %}{% if message['role'] == 'tool' %}"
    "{{ raise_exception('no tools here') }}{% endif %}",
)


def glue_of(template: str = TEMPLATE) -> Glue:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return Glue(tokenizer, {}, OPENING)


def test_a_joint_is_the_end_of_a_turn_the_reply_and_the_start_of_the_next_turn():
    [joint] = glue_of().between([[{"role": "user", "content": "higher"}]])
    assert joint.text == "<|im_end|>\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n"
    assert joint.ids == ids_of(joint.text)


def test_the_token_that_ends_a_turn_is_not_given_twice():
    [joint] = glue_of().between([[{"role": "user", "content": "higher"}]])
    end = 2  # <|im_end|>
    assert joint.after([50, end]) == joint.ids[1:]
    assert joint.after([50, 51]) == joint.ids, "cut at a stop string, the turn's end is the template's"
    assert joint.after([50, 0]) == joint.ids, "another end token stays, and the template's follows"


def test_a_conversation_put_together_is_the_conversation_rendered():
    tokenizer = tiny_tokenizer()
    replies = [
        [{"role": "tool", "name": "a", "content": "1"}, {"role": "tool", "name": "a", "content": "2"}],
        [{"role": "user", "content": "lower"}],
    ]
    first, second = glue_of().between(replies)
    said = ["one two", "three"]
    messages = [*OPENING, *replies[0], *replies[1]]
    messages.insert(1, {"role": "assistant", "content": said[0]})
    messages.insert(4, {"role": "assistant", "content": said[1]})
    whole = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    begun = str(tokenizer.apply_chat_template(list(OPENING), tokenize=False, add_generation_prompt=True))
    assert begun + said[0] + first.text + said[1] + second.text == whole
    assert (*ids_of(begun + said[0]), *first.ids, *ids_of(said[1]), *second.ids) == ids_of(whole)


def test_equal_replies_are_rendered_once():
    glue = glue_of()
    hint = [{"role": "user", "content": "higher"}]
    first, second = glue.between([hint, hint])
    assert first is second
    assert glue.between([hint])[0] is first


def test_a_template_that_drops_earlier_thinking_is_refused():
    with pytest.raises(ConfigError, match="drops earlier thinking"):
        glue_of(DROPS_THINKING).check("user")


def test_a_template_that_writes_the_last_turn_otherwise_is_refused():
    with pytest.raises(ConfigError, match=r"what it puts before a turn|reads otherwise"):
        glue_of(MARKS_LAST).check("user")


def test_a_role_that_the_template_refuses_is_refused_with_its_words():
    glue = glue_of(ONLY_USERS)
    glue.check("user")
    with pytest.raises(ConfigError, match="no tools here"):
        glue.between([[{"role": "tool", "content": "1"}]])
